//! What callers see when the master or a holder dies or hangs: an error in time, no panic, no leaked registration, and
//! the same engine value serves again once they are back.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use tensorhold_core::{Clock, ErrorKind, Retry, SystemClock, poll_until};
use tensorhold_engine::{Engine, EngineExt, GetOutcome, PutOptions, PutOutcome, Registrations};
use tensorhold_testkit::Cluster;

const BIG: usize = 256 << 20;
/// What the scheduler of a busy machine may add to a deadline.
const GRACE: Duration = Duration::from_secs(2);

fn registered(regions: usize, bytes: usize) -> Registrations {
    Registrations {
        regions,
        bytes: bytes as u64,
        stuck: 0,
    }
}

#[test]
fn a_holder_killed_in_the_middle_of_a_get() {
    let cluster = plain().segment_mib(512).start().expect("a cluster");
    let engine = Arc::new(connect(&cluster));
    let clock = SystemClock::new();
    let from = filled(engine.as_ref(), BIG, 1);
    store(engine.as_ref(), "big", &from);
    let last = from.whole();
    let into = engine.allocate(BIG, WITHIN).expect("memory");

    let reader = std::thread::spawn({
        let (engine, into) = (Arc::clone(&engine), into.whole());
        move || engine.get_one(&key("big"), &into, WITHIN)
    });
    // The transfer fills memory from the front: kill when the first bytes are there, and see that the last are not.
    let byte_at = |at: usize, span: &tensorhold_engine::Span| {
        let mut byte = [0];
        span.read(at, &mut byte).expect("inside");
        byte[0]
    };
    let first_filled = (0..4096)
        .find(|&at| byte_at(at, &from.whole()) != 0)
        .expect("a pattern that is not all zero");
    let begun = poll_until(&clock, WITHIN, Duration::ZERO, || {
        (byte_at(first_filled, &into.whole()) != 0).then_some(())
    });
    begun.expect("the transfer begins");
    let killed = clock.now();
    cluster.holder(0).kill().expect("killed");
    let outcome = reader.join().expect("no panic");
    let waited = clock.now().since(killed);

    let landed = into.whole().to_vec();
    assert_ne!(
        landed,
        last.to_vec(),
        "the kill came too late to be in the middle of the transfer"
    );
    let outcome = outcome.expect("one outcome");
    let GetOutcome::Failed(error) = &outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(waited < WITHIN, "{waited:?}");
    println!("holder killed mid-get: {error} after {waited:?}");
    assert_eq!(
        engine.registrations(),
        registered(2, 2 * BIG),
        "nothing more, nothing less"
    );

    cluster.holder(0).restart().expect("restarted");
    wait_until_it_serves(engine.as_ref(), "after a holder's death");
    drop((from, last, into));
    wait_until_nothing_is_registered(engine.as_ref());
}

#[test]
fn a_master_killed_before_a_put() {
    for (name, cluster) in [
        ("no metadata server", plain()),
        ("metadata server", Cluster::builder().p2p_metadata(false)),
    ] {
        let cluster = cluster.segment_mib(64).start().expect("a cluster");
        let engine = connect(&cluster);
        let clock = SystemClock::new();
        let from = filled(&engine, 1 << 20, 2);
        store(&engine, "before", &from);

        cluster.master(0).kill().expect("killed");
        let begin = clock.now();
        let outcome = engine
            .put_one(&key("during"), &from.whole(), &PutOptions::default(), WITHIN)
            .expect("one outcome");
        let waited = clock.now().since(begin);
        let PutOutcome::Failed(error) = &outcome else {
            panic!("{name}: {outcome:?}")
        };
        assert_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::Unavailable, Retry::Ambiguous),
            "{name}: {error}"
        );
        assert!(waited < WITHIN, "{name}: {waited:?}");
        println!("master killed before a put ({name}): {error} after {waited:?}");

        let probe = engine.probe_one(&key("before"), WITHIN).expect_err("nobody to ask");
        assert_eq!(probe.kind(), ErrorKind::Unavailable, "{name}: {probe}");
        assert_eq!(engine.registrations(), registered(1, 1 << 20), "{name}");

        cluster.master(0).restart().expect("restarted");
        wait_until_it_serves(&engine, name);
        drop(from);
        wait_until_nothing_is_registered(&engine);
        assert_eq!(engine.registrations().stuck, 0, "{name}");
    }
}

#[test]
fn memory_dropped_while_the_metadata_server_is_away_is_forgotten_later() {
    let cluster = Cluster::builder()
        .p2p_metadata(false)
        .segment_mib(64)
        .start()
        .expect("a cluster");
    let engine = connect(&cluster);
    let region = filled(&engine, 1 << 20, 4);
    cluster.master(0).kill().expect("killed");
    drop(region);
    let refused = engine.allocate(1 << 20, WITHIN).expect_err("no metadata server");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(
        engine.registrations(),
        registered(1, 1 << 20),
        "kept until it can be forgotten"
    );
    cluster.master(0).restart().expect("restarted");
    wait_until_nothing_is_registered(&engine);
    assert_eq!(engine.registrations().stuck, 0);
    wait_until_it_serves(&engine, "with a metadata server");
}

#[test]
fn a_master_that_hangs_costs_the_deadline_and_no_more() {
    const PATIENCE: Duration = Duration::from_millis(700);
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let engine = connect(&cluster);
    let clock = SystemClock::new();
    let from = filled(&engine, 1 << 20, 5);
    store(&engine, "before", &from);
    let into = engine.allocate(1 << 20, WITHIN).expect("memory");

    cluster.master(0).stop().expect("stopped");
    let begin = clock.now();
    let put = engine
        .put_one(&key("during"), &from.whole(), &PutOptions::default(), PATIENCE)
        .expect_err("no answer");
    let get = engine
        .get_one(&key("before"), &into.whole(), PATIENCE)
        .expect_err("no answer");
    let remove = engine.remove_one(&key("before"), PATIENCE).expect_err("no answer");
    let probe = engine.probe_one(&key("before"), PATIENCE).expect_err("no answer");
    let usage = engine.usage(PATIENCE).expect_err("no answer");
    let waited = clock.now().since(begin);
    assert!(waited < 5 * PATIENCE + GRACE, "{waited:?}");
    for (error, retry) in [
        (&put, Retry::Ambiguous),
        (&get, Retry::Safe),
        (&remove, Retry::Ambiguous),
        (&probe, Retry::Safe),
        (&usage, Retry::Safe),
    ] {
        assert_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::Unavailable, retry),
            "{error}"
        );
    }

    // The put and the get are still in flight, so their memory stays registered although this test holds none of it.
    drop((from, into));
    assert_eq!(engine.registrations().regions, 2);
    cluster.master(0).resume().expect("resumed");
    wait_until_nothing_is_registered(&engine);
    wait_until_it_serves(&engine, "after a pause of the master");
}

#[test]
fn a_holder_that_hangs_costs_the_deadline_and_no_more() {
    const PATIENCE: Duration = Duration::from_millis(700);
    let cluster = plain().segment_mib(128).start().expect("a cluster");
    let engine = connect(&cluster);
    let clock = SystemClock::new();
    let from = filled(&engine, 32 << 20, 6);
    store(&engine, "big", &from);
    let into = engine.allocate(32 << 20, WITHIN).expect("memory");

    cluster.holder(0).stop().expect("stopped");
    let begin = clock.now();
    let error = engine
        .get_one(&key("big"), &into.whole(), PATIENCE)
        .expect_err("no answer");
    assert!(clock.now().since(begin) < PATIENCE + GRACE);
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Safe),
        "{error}"
    );
    drop(into);
    assert_eq!(engine.registrations().regions, 2, "the transfer may still write there");
    cluster.holder(0).resume().expect("resumed");
    wait_until_it_serves(&engine, "after a pause of the holder");
    drop(from);
    wait_until_nothing_is_registered(&engine);
}

#[test]
fn an_engine_dropped_with_a_call_that_hangs_does_not_hang_with_it() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let mut settings = config(&cluster.endpoints());
    settings.close_within = Duration::from_millis(500);
    let engine = tensorhold_engine_mooncake::MooncakeEngine::connect(settings).expect("a client");
    let clock = SystemClock::new();
    let from = filled(&engine, 4096, 7);
    cluster.master(0).stop().expect("stopped");
    let error = engine
        .put_one(
            &key("during"),
            &from.whole(),
            &PutOptions::default(),
            Duration::from_millis(200),
        )
        .expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let begin = clock.now();
    drop((from, engine));
    assert!(
        clock.now().since(begin) < Duration::from_secs(2) + GRACE,
        "{:?}",
        clock.now().since(begin)
    );
    cluster.master(0).resume().expect("resumed");
}

#[test]
fn connecting_to_nobody_is_unavailable_in_time() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let mut settings = config(&cluster.endpoints());
    settings.connect_within = Duration::from_secs(3);
    cluster.master(0).kill().expect("killed");
    let clock = SystemClock::new();
    let begin = clock.now();
    let error = tensorhold_engine_mooncake::MooncakeEngine::connect(settings).expect_err("nobody there");
    assert!(clock.now().since(begin) < Duration::from_secs(3) + GRACE);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
