//! The bugs that reviews found in another planner, each by name, replayed step by step. Each test passes here, and
//! fails with the bug put back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorhold_kvcache::plan::flaw::Flaw;
use tensorhold_kvcache::plan::{PageKeys, Plan, PlanEvent, PlannerConfig, RequestId, Ticket, Work};

use crate::world::{PAGE, World, root};

fn world(flaw: Option<Flaw>, host_pages: u32) -> World {
    let config = PlannerConfig {
        prefetch_threshold: 1,
        ..PlannerConfig::new(root(0), PAGE, host_pages, 32)
    };
    World::with_config(flaw, 1, config)
}

/// A prompt of whole pages that share their beginning, and a token behind them.
fn prompt(pages: u32) -> Vec<u32> {
    (0..pages * PAGE + 1).collect()
}

fn other(pages: u32, family: u32) -> Vec<u32> {
    (0..pages * PAGE + 1).map(|at| 1_000 * family + at).collect()
}

/// Ends every operation that is in flight, completely.
fn complete(world: &mut World) {
    let ids: Vec<_> = world.flights.keys().copied().collect();
    for id in ids {
        world.perform(id, 0, None, false);
        world.deliver(id);
    }
}

/// Runs a request until it has been written back; the backup, too, if `backup`.
fn serve(world: &mut World, id: u64, tokens: &[u32], backup: bool) -> Ticket {
    let ticket = world.submit(id, tokens).unwrap();
    for _ in 0..4 {
        world.step(1);
        if world.is_running(ticket.turn) {
            break;
        }
        complete(world);
    }
    world.compute(ticket.turn);
    world.tell(&PlanEvent::PrefillDone(ticket)).unwrap();
    world.tell(&PlanEvent::Finish(ticket)).unwrap();
    world.step(1);
    complete(world);
    world.step(1);
    if backup {
        complete(world);
    }
    ticket
}

/// Evicts all unpinned pages from the device and from the host.
fn flush(world: &mut World, id: u64, family: u32, host_pages: u32) {
    serve(world, id, &other(host_pages, family), true);
}

fn prefetched(plan: &Plan) -> Vec<u32> {
    let pages = plan.operations.iter().find_map(|operation| match &operation.work {
        Work::Prefetch(pages) => Some(pages.iter().map(|at| at.index).collect()),
        _ => None,
    });
    pages.unwrap_or_default()
}

/// The host has the first pages, L3 has the next ones: the fetched pages belong after the ones that are there.
fn partial_hit(flaw: Option<Flaw>) {
    let mut world = world(flaw, 9);
    serve(&mut world, 1, &prompt(6), true);
    // A flush of seven pages leaves the first two in the host; the device is cleared by one of its own.
    flush(&mut world, 2, 1, 7);
    flush_device(&mut world);
    let ticket = world.submit(3, &prompt(6)).unwrap();
    world.step(1);
    complete(&mut world);
    let plan = world.step(1);
    assert_eq!(prefetched(&plan), [2, 3, 4, 5]);
    complete(&mut world);
    world.step(1);
    complete(&mut world);
    world.step(1);
    assert!(world.is_running(ticket.turn));
    world.compute(ticket.turn);
}

/// Takes every device page once, so that nothing is left on the device.
fn flush_device(world: &mut World) {
    let ticket = world.submit(77, &other(31, 9)).unwrap();
    world.step(100);
    world.step(100);
    assert!(world.is_running(ticket.turn), "the device is full");
    world.tell(&PlanEvent::Abort(ticket)).unwrap();
    world.step(1);
    complete(world);
}

#[test]
fn suffix_pages_are_published_behind_their_prefix() {
    partial_hit(None);
    fails(Flaw::SuffixUnderWrongPrefix, partial_hit);
}

/// The host match changes between the question to L3 and the prefetch.
fn match_moves(flaw: Option<Flaw>) {
    let mut world = world(flaw, 9);
    serve(&mut world, 1, &prompt(6), true);
    flush(&mut world, 2, 1, 7);
    flush_device(&mut world);
    // L3 is asked while the host has two pages …
    let ticket = world.submit(3, &prompt(6)).unwrap();
    let plan = world.step(1);
    assert!(matches!(&plan.operations[0].work, Work::Query(keys) if keys[0].index == 2));
    // … and when it answers, another request has pushed them out.
    let query = plan.operations[0].id;
    world.perform(query, 0, None, false);
    evict_host(&mut world);
    world.deliver(query);
    let plan = world.step(1);
    assert_eq!(prefetched(&plan), [0, 1, 2, 3, 4, 5]);
    complete(&mut world);
    world.step(1);
    complete(&mut world);
    world.step(1);
    assert!(world.is_running(ticket.turn));
    world.compute(ticket.turn);
}

fn evict_host(world: &mut World) {
    world.tell(&PlanEvent::Clear).unwrap();
}

#[test]
fn keys_and_places_of_a_prefetch_come_from_one_match() {
    match_moves(None);
    fails(Flaw::HashesOfAnotherMatch, match_moves);
}

/// Eviction pressure between the end of a write-back and the end of its backup.
fn pressure_before_backup(flaw: Option<Flaw>) {
    let mut world = world(flaw, 6);
    serve(&mut world, 1, &prompt(5), false);
    let backup = *world.flights.keys().next().unwrap();
    assert!(matches!(world.flights[&backup].operation.work, Work::Backup(_)));
    // Another request wants the host pages; it gets the one that is not being backed up.
    let ticket = world.submit(2, &other(5, 1)).unwrap();
    world.step(100);
    world.step(100);
    world.compute(ticket.turn);
    world.tell(&PlanEvent::PrefillDone(ticket)).unwrap();
    world.tell(&PlanEvent::Finish(ticket)).unwrap();
    let plan = world.step(1);
    assert!(
        plan.operations
            .iter()
            .any(|operation| matches!(&operation.work, Work::WriteBack(pages) if pages.len() == 1))
    );
    // What is stored is what was to be stored.
    world.perform(backup, 0, None, false);
    world.deliver(backup);
}

#[test]
fn a_backup_holds_its_pages_until_it_is_acknowledged() {
    pressure_before_backup(None);
    fails(Flaw::BackupNotPinned, pressure_before_backup);
}

fn fails(flaw: Flaw, story: fn(Option<Flaw>)) {
    let result = catch_unwind(AssertUnwindSafe(|| story(Some(flaw))));
    assert!(result.is_err(), "{flaw:?} was not caught");
}

#[test]
fn a_request_whose_store_never_answers_goes_on_at_the_deadline() {
    let mut world = world(None, 9);
    serve(&mut world, 1, &prompt(6), true);
    flush(&mut world, 2, 1, 9);
    flush_device(&mut world);
    let ticket = world.submit(3, &prompt(6)).unwrap();
    world.step(1);
    complete(&mut world);
    let plan = world.step(1);
    let prefetch = plan.operations[0].id;
    let owned = world.planner().host_pages().1;
    assert_eq!(owned, 6);
    let plan = world.step(100);
    assert_eq!(plan.cancel, [prefetch]);
    assert!(world.is_running(ticket.turn), "it computes instead");
    assert_eq!(world.planner().host_pages().1, 6, "its pages stay with the operation");
    // The store wakes up: what it brings is published all the same.
    world.perform(prefetch, 0, None, false);
    world.deliver(prefetch);
    assert_eq!(world.planner().host_pages().1, 0);
    assert_eq!(world.planner().counters().orphaned, 1);
}

#[test]
fn an_event_with_the_turn_of_another_request_leaves_that_request_alone() {
    let mut world = world(None, 32);
    let ticket = world.submit(1, &prompt(2)).unwrap();
    let forged = Ticket {
        request: RequestId(2),
        turn: ticket.turn,
    };
    world.tell(&PlanEvent::Finish(forged)).unwrap_err();
    world
        .tell(&PlanEvent::Abort(ticket))
        .expect("the request is still there");
}

/// How many of a prompt's first pages are in L3.
fn in_l3(world: &World, pages: u32) -> usize {
    let mut keys = PageKeys::new(root(0), PAGE);
    keys.extend(&prompt(pages));
    let l3 = &world.memory[0].l3;
    keys.as_slice().iter().filter(|key| l3.contains_key(*key)).count()
}

#[test]
fn what_l3_evicts_while_the_host_serves_it_is_backed_up_again() {
    let mut world = world(None, 9);
    serve(&mut world, 1, &prompt(6), true);
    assert_eq!(in_l3(&world, 6), 6);
    world.memory[0].l3.clear();
    serve(&mut world, 2, &prompt(6), true);
    assert_eq!(in_l3(&world, 6), 6);
}

#[test]
fn a_long_prompt_is_backed_up_again_part_by_part() {
    let config = PlannerConfig {
        prefetch_threshold: 1,
        recheck_pages: 2,
        ..PlannerConfig::new(root(0), PAGE, 9, 32)
    };
    let mut world = World::with_config(None, 1, config);
    serve(&mut world, 1, &prompt(6), true);
    world.memory[0].l3.clear();
    serve(&mut world, 2, &prompt(6), true);
    assert_eq!(in_l3(&world, 6), 2, "no more than a part for each request");
    for id in 3..40 {
        serve(&mut world, id, &prompt(6), true);
    }
    assert_eq!(in_l3(&world, 6), 6, "every part has its turn");
}

#[test]
fn a_step_backs_up_one_request_again() {
    let mut world = world(None, 12);
    let served: Vec<Vec<u32>> = vec![prompt(4), other(4, 1)];
    for (id, tokens) in (1..).zip(&served) {
        serve(&mut world, id, tokens, true);
    }
    world.memory[0].l3.clear();
    let tickets: Vec<Ticket> = (11..)
        .zip(&served)
        .map(|(id, tokens)| world.submit(id, tokens).unwrap())
        .collect();
    for _ in 0..4 {
        world.step(1);
        complete(&mut world);
    }
    for ticket in tickets {
        world.compute(ticket.turn);
        world.tell(&PlanEvent::PrefillDone(ticket)).unwrap();
        world.tell(&PlanEvent::Finish(ticket)).unwrap();
    }
    world.step(1);
    world.step(1);
    complete(&mut world);
    assert_eq!(world.memory[0].l3.len(), 4);
}

/// A host that has nothing to do takes no steps; the time of a query begins when a plan hands it out.
#[test]
fn a_query_after_a_pause_has_all_of_its_time() {
    let mut world = world(None, 16);
    world.step(1);
    let ticket = world.submit(1, &prompt(4)).unwrap();
    let plan = world.step(500);
    assert_eq!(plan.cancel, []);
    assert!(matches!(plan.operations[0].work, Work::Query(_)));
    assert!(!world.is_running(ticket.turn), "it waits for the answer");
    let plan = world.step(9);
    assert_eq!(plan.cancel, []);
    let plan = world.step(2);
    assert_eq!(plan.cancel.len(), 1, "ten ticks have passed");
}
