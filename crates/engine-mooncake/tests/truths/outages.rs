//! Masters and holders that die, hang and return.

use std::time::Duration;

use tensorhold_core::{Clock, SystemClock};
use tensorhold_engine::Span;

use crate::bare::{Bare, Keep, MIB, OBJECT_NOT_FOUND, RPC_FAIL, RPC_TIMEOUT, TRANSFER_FAIL, soon, within};
use crate::common::{RECOVERY, plain};

/// When a holder dies, its objects still exist for the master, and reads of them fail, until it has missed it for
/// `--client_ttl`; then they vanish, pinned or not. Tensorhold reads the failure as `Unavailable`, and takes the loss of a
/// pinned object for possible at any time.
#[test]
fn a_dead_holders_objects_linger_and_then_vanish() {
    const CLIENT_TTL: Duration = Duration::from_secs(5);
    let cluster = plain()
        .segment_mib(64)
        .master_flag(format!("--client_ttl={}", CLIENT_TTL.as_secs()))
        .start()
        .expect("a cluster");
    let bare = Bare::connect(&cluster);
    let clock = SystemClock::new();
    let from = bare.filled(MIB, 1);
    let into = bare.memory(MIB);
    assert_eq!(bare.put("pinned", &from.whole(), Keep::Pinned), 0);
    assert_eq!(bare.put("evictable", &from.whole(), Keep::Evictable), 0);

    cluster.holder(0).kill().expect("killed");
    let dead = clock.now();
    let seen = (bare.is_exist("pinned"), bare.probe("pinned"));
    let read = bare.get("pinned", &into.whole());
    let took = clock.now().since(dead);
    println!("right after a holder's death: {seen:?}, a get {read} within {took:?}");
    assert_eq!(
        seen,
        (1, Ok((1, 0))),
        "a dead holder's objects used to exist for a while; revisit what a probe proves"
    );
    assert_eq!(
        read, TRANSFER_FAIL,
        "a read from a dead holder used to fail with -800; revisit codes::meaning"
    );
    for key in ["pinned", "evictable"] {
        within(RECOVERY, "the master forgets a dead holder's objects", || {
            (bare.is_exist(key) == 0).then_some(())
        });
        assert_eq!(
            bare.get(key, &into.whole()),
            OBJECT_NOT_FOUND,
            "{key}: a pin used not to outlive its holder; revisit how losses are told"
        );
    }
    let vanished = clock.now().since(dead);
    println!("they vanished {vanished:?} after it, with --client_ttl {CLIENT_TTL:?}");
    assert!(
        vanished < CLIENT_TTL * 4,
        "a dead holder's objects used to vanish after --client_ttl, not {vanished:?}; revisit how soon losses are told"
    );
}

/// Without a master every call fails with -900 within some seconds (descriptors: with an empty answer). When it is back,
/// all that was in DRAM is gone, pins too, and the same client and holder serve again. Tensorhold's engine value therefore
/// outlives a master, and its catalogue does not live in the engine.
#[test]
fn a_dead_master_fails_calls_in_time_and_forgets_all() {
    const BOUND: Duration = Duration::from_secs(15);
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let clock = SystemClock::new();
    let (from, into) = (bare.filled(MIB, 1), bare.memory(MIB));
    for (key, keep) in [("pinned", Keep::Pinned), ("evictable", Keep::Evictable)] {
        assert_eq!(bare.put(key, &from.whole(), keep), 0);
    }

    cluster.master(0).kill().expect("killed");
    // Side by side, because each takes some seconds.
    type Call = fn(&Bare, &Span) -> i64;
    let calls: [(&str, Call); 6] = [
        ("put", |bare, memory| bare.put("new", memory, Keep::Pinned)),
        ("get", |bare, memory| bare.get("pinned", memory)),
        ("is_exist", |bare, _| bare.is_exist("pinned")),
        ("batch_is_exist", |bare, _| bare.batch_is_exist(&["pinned"])[0]),
        ("remove", |bare, _| bare.remove("pinned", true)),
        ("batch_remove", |bare, _| {
            bare.batch_remove(&["pinned".to_owned()], true)[0]
        }),
    ];
    let calls = calls.map(|(name, call)| {
        let memory = into.whole();
        let timed = move |bare: &Bare| {
            let begin = clock.now();
            (name, call(bare, &memory), clock.now().since(begin))
        };
        bare.spawn(timed)
    });
    let calls = calls.map(|call| call.join().expect("no panic"));
    println!("with a dead master: {calls:?}");
    for (name, code, took) in calls {
        assert_eq!(
            code, RPC_FAIL,
            "{name} without a master used to be -900; revisit codes::meaning"
        );
        assert!(
            took < BOUND,
            "{name} without a master used to fail within 5 s, not {took:?}; revisit the deadlines that Tensorhold advises"
        );
    }
    assert_eq!(
        bare.replica_desc(&["pinned"]),
        0,
        "descriptors used to be empty without a master, with no error; revisit Engine::promote"
    );

    cluster.master(0).restart().expect("restarted");
    within(
        RECOVERY,
        "the same client and holder serve again; revisit why an engine value outlives a master",
        || {
            let put = bare.put("after", &from.whole(), Keep::Pinned);
            (put == 0 && bare.get("after", &into.whole()) == 1 << 20).then_some(())
        },
    );
    assert_eq!(into.whole().to_vec(), from.whole().to_vec());
    for key in ["pinned", "evictable", "new"] {
        assert_eq!(
            bare.get(key, &into.whole()),
            OBJECT_NOT_FOUND,
            "{key}: a master without HA used to forget all that was in DRAM; revisit what Tensorhold recovers"
        );
    }
}

/// A master that hangs holds calls up: they return as soon as it goes on. This is why each of Tensorhold's calls has a
/// deadline and a thread of its own.
#[test]
fn a_call_to_a_master_that_hangs_returns_when_it_goes_on() {
    const PAUSE: Duration = Duration::from_secs(8);
    // A lease counts from the question, not from the answer, so a get needs a lease longer than the pause; and the
    // master must not take the holder for dead because it slept itself.
    let cluster = plain()
        .segment_mib(64)
        .lease_ttl(PAUSE * 8)
        .master_flag("--client_ttl=60")
        .start()
        .expect("a cluster");
    let bare = Bare::connect(&cluster);
    let (from, into) = (bare.filled(MIB, 1), bare.memory(MIB));
    assert_eq!(bare.put("k", &from.whole(), Keep::Pinned), 0);
    cluster.master(0).stop().expect("stopped");
    let put = bare.spawn({
        let from = from.whole();
        move |bare| bare.put("new", &from, Keep::Pinned)
    });
    let get = bare.spawn({
        let into = into.whole();
        move |bare| bare.get("k", &into)
    });
    let is_exist = bare.spawn(|bare| bare.is_exist("k"));
    SystemClock::new().sleep(PAUSE);
    let finished = (put.is_finished(), get.is_finished(), is_exist.is_finished());
    cluster.master(0).resume().expect("resumed");
    assert_eq!(
        finished,
        (false, false, false),
        "calls to a master that hangs used to hang with it for longer than {PAUSE:?}; revisit calls.rs"
    );
    let join = |call: std::thread::JoinHandle<i64>| {
        soon("the call returns once the master goes on", || {
            call.is_finished().then_some(())
        });
        call.join().expect("no panic")
    };
    assert_eq!(
        (join(put), join(get), join(is_exist)),
        (0, 1 << 20, 1),
        "a call that hung used to succeed late; revisit Effect::Changes in calls.rs"
    );
}

/// The engine's own patience with a master that hangs ends after 30 s, with -901. Far longer than Tensorhold's callers
/// wait, but a hung call does come back and gives its thread and memory back.
#[test]
fn a_call_to_a_master_that_hangs_ends_after_30_s() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let clock = SystemClock::new();
    cluster.master(0).stop().expect("stopped");
    let begin = clock.now();
    let code = bare.is_exist("k");
    let took = clock.now().since(begin);
    cluster.master(0).resume().expect("resumed");
    println!("the engine gave up after {took:?} with {code}");
    assert_eq!(
        code, RPC_TIMEOUT,
        "a hung call used to end with -901; revisit codes::meaning"
    );
    assert!(
        took > Duration::from_secs(20) && took < Duration::from_secs(60),
        "the engine used to give up on a hung master after 30 s, not {took:?}; revisit MooncakeConfig::max_calls"
    );
}
