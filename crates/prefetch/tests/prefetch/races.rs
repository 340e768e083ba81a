//! What happens to an object while it is read ahead, and to callers who wait meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tensorhold_core::{Clock, ObjectKey, SystemClock, poll_until};
use tensorhold_engine::testing::Observed;
use tensorhold_engine::{Engine, EngineExt, GetOutcome, MemoryCluster, MemoryConfig, PutOutcome, Transfer};
use tensorhold_prefetch::{PrefetchConfig, PrefetchEngine, Priority, Route};

use crate::world::{LEN, SECOND, World, config, pattern};

/// Does something with the world in the middle of its next read.
fn during_next_get(world: &Arc<World>, act: impl FnOnce(&World) + Send + 'static) {
    let inside = Arc::clone(world);
    world.observed.during_next_get(move || act(&inside));
}

/// A call that stops in the middle: it says so, and goes on when the sender is dropped.
fn gate() -> (impl FnOnce() + Send + 'static, Receiver<()>, Sender<()>) {
    let (reached, is_reached) = channel();
    let (open, is_open) = channel::<()>();
    let stop = move || {
        reached.send(()).expect("the test waits for it");
        assert!(
            is_open.recv().is_err(),
            "nothing is sent: the gate opens when its sender is gone"
        );
    };
    (stop, is_reached, open)
}

#[test]
fn what_is_removed_in_the_middle_of_its_read_is_not_served() {
    let world = Arc::new(World::new(Route::Buffer));
    during_next_get(&world, |world| {
        world.engine.remove(&world.keys[..1], SECOND).expect("lawful");
    });
    let prefetch = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    world.steps();
    assert_eq!(prefetch.progress().ended["absent"], 1);
    assert_eq!(
        (world.get(&world.keys[0]), world.engine.stats().buffer_bytes),
        (None, 0)
    );
}

#[test]
fn what_is_written_anew_is_served_as_it_is_now() {
    for in_the_middle in [true, false] {
        let world = Arc::new(World::new(Route::Buffer));
        let rewrite = |world: &World| {
            let key = &world.keys[0];
            let other = world.engine.allocate(LEN, SECOND).expect("memory");
            other.whole().write(0, &pattern(77)).expect("fits");
            // Behind the back of this prefetcher, as another process would.
            world.observed.remove(&world.keys[..1], SECOND).expect("lawful");
            let put = world
                .engine
                .put_one(key, &other.whole(), &tensorhold_engine::PutOptions::default(), SECOND);
            assert!(matches!(put, Ok(PutOutcome::Stored)), "{put:?}");
        };
        let prefetch = if in_the_middle {
            during_next_get(&world, rewrite);
            world.engine.prefetch(&world.keys[..1], Priority::Guess)
        } else {
            let prefetch = world.engine.prefetch(&world.keys[..1], Priority::Guess);
            world.steps();
            assert!(world.engine.is_local(&world.keys[0]));
            rewrite(&world);
            prefetch
        };
        world.steps();
        assert_eq!(prefetch.progress().pending, 0);
        assert_eq!(world.get(&world.keys[0]), Some(pattern(77)), "{in_the_middle}");
    }
}

#[test]
fn a_copy_of_what_another_process_removed_is_dropped_when_that_is_seen() {
    let world = World::new(Route::Buffer);
    drop(world.engine.prefetch(&world.keys[..1], Priority::Guess));
    world.steps();
    assert!(world.engine.is_local(&world.keys[0]));
    world.observed.remove(&world.keys[..1], SECOND).expect("lawful");
    world.engine.exists(&world.keys[..1], SECOND).expect("lawful");
    assert!(!world.engine.is_local(&world.keys[0]));
}

#[test]
fn what_is_read_in_the_middle_of_its_read_is_kept_only_if_it_is_asked_for_again() {
    for again in [false, true] {
        let world = Arc::new(World::new(Route::Buffer));
        during_next_get(&world, move |world| {
            assert_eq!(world.get(&world.keys[0]), Some(pattern(0)));
            if again {
                drop(world.engine.prefetch(&world.keys[..1], Priority::Guess));
            }
        });
        drop(world.engine.prefetch(&world.keys[..1], Priority::Guess));
        world.steps();
        assert_eq!(world.engine.is_local(&world.keys[0]), again);
    }
}

#[test]
fn an_engine_that_is_dropped_in_the_middle_of_a_read_keeps_no_memory() {
    let World {
        observed, clock, keys, ..
    } = World::new(Route::Buffer);
    let before = observed.registrations().regions;
    let one_worker = PrefetchConfig {
        workers: 1,
        ..config(Route::Buffer)
    };
    let below = Arc::clone(&observed) as Arc<dyn Engine>;
    let engine = PrefetchEngine::new(below, one_worker, clock).expect("lawful");
    let (stop, reached, open) = gate();
    observed.during_next_get(stop);
    drop(engine.prefetch(&keys[..1], Priority::Guess));
    reached.recv_timeout(10 * SECOND).expect("a worker reads");
    drop(engine);
    drop(open);
    let freed = poll_until(&SystemClock::new(), 10 * SECOND, SECOND / 100, || {
        (observed.registrations().regions == before).then_some(())
    });
    assert!(freed.is_some(), "{:?}", observed.registrations());
}

#[test]
fn a_get_waits_for_what_is_on_its_way_and_reads_nothing_itself() {
    let world = Arc::new(World::with(PrefetchConfig {
        workers: 1,
        wait_for_prefetch: 100 * SECOND,
        ..config(Route::Buffer)
    }));
    let (stop, reached, open) = gate();
    world.observed.during_next_get(stop);
    drop(world.engine.prefetch(&world.keys[..1], Priority::Guess));
    reached.recv_timeout(10 * SECOND).expect("a worker reads");
    let reader = {
        let world = Arc::clone(&world);
        std::thread::spawn(move || {
            let region = world.engine.allocate(LEN, SECOND).expect("memory");
            let got = world.engine.get_one(&world.keys[0], &region.whole(), 1000 * SECOND);
            assert!(matches!(got, Ok(GetOutcome::Loaded)), "{got:?}");
            region.whole().to_vec()
        })
    };
    let joined = poll_until(&SystemClock::new(), 10 * SECOND, SECOND / 100, || {
        (world.engine.stats().outcomes.asked == 2).then_some(())
    });
    assert!(joined.is_some(), "the get has joined the attempt");
    drop(open);
    assert_eq!(reader.join().expect("no panic"), pattern(0));
    assert_eq!(world.read_and_promoted()[0], 1, "one read for both");
    assert_eq!(world.engine.stats().sources.local, 1);
    world.engine.close();
}

#[test]
fn an_object_goes_from_the_buffer_into_several_parts() {
    let world = World::new(Route::Buffer);
    drop(world.engine.prefetch(&world.keys[2..3], Priority::Guess));
    world.steps();
    let reads = world.read_and_promoted()[0];
    let parts = [0..7, 7..LEN / 2, LEN / 2..LEN].map(|range| world.region.span(range).expect("inside"));
    let transfer = Transfer {
        key: world.keys[2].clone(),
        parts: parts.to_vec(),
    };
    let got = world.engine.get(&[transfer], SECOND).expect("lawful");
    assert!(matches!(got[..], [GetOutcome::Loaded]), "{got:?}");
    assert_eq!(world.read_and_promoted()[0], reads, "from the buffer");
    assert!(
        world.region.whole().to_vec() == pattern(2),
        "each part has its own bytes"
    );
}

fn keys(prefix: &str, count: usize) -> Vec<ObjectKey> {
    let key = |n| ObjectKey::new(format!("{prefix}/{n}")).expect("a key");
    (0..count).map(key).collect()
}

/// A cluster that takes two keys in a request, its prefetcher, and the gates of two probes that hang.
fn two_hanging_probes() -> (Arc<PrefetchEngine>, Vec<Sender<()>>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let few = MemoryConfig {
        max_batch: 2,
        ..MemoryConfig::default()
    };
    let below: Arc<dyn Engine> = MemoryCluster::new(few, Arc::clone(&clock)).connect();
    let observed = Arc::new(Observed::new(below, Arc::clone(&clock)));
    let engine = PrefetchEngine::new(Arc::clone(&observed) as Arc<dyn Engine>, config(Route::Buffer), clock);
    let engine = Arc::new(engine.expect("lawful"));
    let mut gates = Vec::new();
    for n in 0..2 {
        let (stop, reached, open) = gate();
        observed.during_next_probe(stop);
        let engine = Arc::clone(&engine);
        std::thread::spawn(move || engine.exists(&keys(&format!("hangs-{n}"), 2), 60 * SECOND));
        reached.recv_timeout(10 * SECOND).expect("it asks");
        gates.push(open);
    }
    (engine, gates)
}

#[test]
fn a_round_that_nobody_leads_any_more_is_in_nobodys_way() {
    let (engine, gates) = two_hanging_probes();
    let ask = |prefix: &str, within: Duration| {
        let (engine, keys) = (Arc::clone(&engine), keys(prefix, 2));
        std::thread::spawn(move || engine.exists(&keys, within))
    };
    // The first fills the round; the second finds it full, and is still there when the first gives up.
    let first = ask("first", SECOND / 4);
    let second = ask("second", SECOND / 2);
    assert!(first.join().expect("no panic").is_err() && second.join().expect("no panic").is_err());
    drop(gates);
    let third = ask("third", 10 * SECOND).join().expect("no panic");
    assert!(third.is_ok(), "{third:?}");
}
