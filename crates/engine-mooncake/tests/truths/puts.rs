//! Puts that say 0 and did nothing, and a put that never ends.

use std::time::Duration;

use tensorhold_core::{Clock, SystemClock};
use tensorhold_engine::testing::Harness;

use crate::bare::{Bare, INVALID_PARAMS, Keep, MIB, OBJECT_NOT_FOUND, REPLICA_IS_NOT_READY, soon, within};
use crate::common::{RealHarness, key, plain};

/// A put of a key that exists returns 0 and writes nothing, whether the sizes agree or not. Tensorhold's keys are
/// therefore never used twice, and `PutOutcome::Stored` does not say which put wrote the bytes.
#[test]
fn a_put_on_an_existing_key_says_0_and_writes_nothing() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let (first, same, longer) = (bare.filled(4096, 1), bare.filled(4096, 2), bare.filled(8192, 3));
    let into = bare.memory(4096);
    assert_eq!(bare.put("k", &first.whole(), Keep::Evictable), 0);
    for second in [&same, &longer] {
        let len = second.len();
        assert_eq!(
            bare.put("k", &second.whole(), Keep::Evictable),
            0,
            "a put of {len} bytes on an existing key used to return 0; revisit codes::put and the rule that keys are \
             written once"
        );
        assert_eq!(bare.get("k", &into.whole()), 4096, "the first size used to stay");
        assert_eq!(
            into.whole().to_vec(),
            first.whole().to_vec(),
            "a put of {len} bytes on an existing key used to write nothing; revisit the rule that keys are written once"
        );
    }
}

/// A put of no bytes from memory returns 0 and stores nothing; one of an empty value is refused. Tensorhold's regions and
/// spans are never empty, so it never asks.
#[test]
fn a_put_of_nothing_says_0_and_stores_nothing() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(4096, 1);
    assert_eq!(
        bare.put_len("k", &from.whole(), 0, Keep::Evictable),
        0,
        "put_from of zero bytes used to return 0; revisit why spans are never empty"
    );
    assert_eq!(
        (bare.is_exist("k"), bare.get("k", &from.whole()), bare.get_size("k")),
        (0, OBJECT_NOT_FOUND, OBJECT_NOT_FOUND),
        "put_from of zero bytes used to store nothing; revisit why spans are never empty"
    );
    let empty: i64 = pyo3::Python::attach(|py| bare.call("put", ("k", pyo3::types::PyBytes::new(py, b"")), py));
    assert_eq!(empty, INVALID_PARAMS, "put of an empty value used to be refused");
}

/// An empty key is refused by a put and unknown to everything else. `ObjectKey` refuses it from the start.
#[test]
fn an_empty_key_is_refused() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(4096, 1);
    let seen = (
        bare.put("", &from.whole(), Keep::Evictable),
        bare.get("", &from.whole()),
        bare.remove("", true),
        bare.is_exist(""),
    );
    assert_eq!(
        seen,
        (INVALID_PARAMS, OBJECT_NOT_FOUND, OBJECT_NOT_FOUND, 0),
        "an empty key used to be refused by put and unknown elsewhere; revisit ObjectKey::new"
    );
}

/// Two replicas asked for where there is one segment: the put returns 0 and there is one. Tensorhold must count replicas
/// by probing if it promises any number of them.
#[test]
fn fewer_replicas_than_asked_for_is_a_success() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(4096, 1);
    assert_eq!(
        bare.put_replicas("k", &from.whole(), 2),
        0,
        "a put of two replicas on one segment used to return 0; revisit PutOptions::replicas"
    );
    assert_eq!(
        bare.probe("k"),
        Ok((1, 0)),
        "one segment used to mean one replica; revisit PutOptions::replicas"
    );
}

/// A writer that is killed between the start and the end of its put leaves a key that cannot be read, removed or, until
/// `--put_start_discard_timeout_sec`, written; a put of it returns 0 all the same. Tensorhold never writes a key twice and
/// confirms a put by probing.
#[test]
fn a_put_that_never_ended_blocks_its_key_until_the_discard_timeout() {
    const DISCARD: Duration = Duration::from_secs(8);
    let cluster = plain()
        .segment_mib(64)
        .master_flag(format!("--put_start_discard_timeout_sec={}", DISCARD.as_secs()))
        .start()
        .expect("a cluster");
    let harness = RealHarness { cluster };
    let bare = Bare::connect(&harness.cluster);
    let from = bare.filled(MIB, 1);
    let into = bare.memory(MIB);
    let clock = SystemClock::new();
    let before = clock.now();
    harness
        .abandon_put(&key("stuck"), MIB as u64)
        .expect("a put that never ends");
    let after = clock.now();

    assert_eq!(
        bare.probe("stuck"),
        Err("REPLICA_IS_NOT_READY".to_owned()),
        "the HTTP probe used to tell an unfinished put; revisit Presence::Unfinished"
    );
    let seen = (
        bare.get("stuck", &into.whole()),
        bare.remove("stuck", true),
        bare.batch_remove(&["stuck".to_owned()], true)[0],
        bare.is_exist("stuck"),
    );
    assert_eq!(
        seen,
        (REPLICA_IS_NOT_READY, REPLICA_IS_NOT_READY, REPLICA_IS_NOT_READY, 0),
        "get and forced removes of an unfinished put used to say -703 and is_exist 0; revisit codes::get and \
         RemoveOutcome::Unfinished"
    );
    assert_eq!(
        bare.put("stuck", &from.whole(), Keep::Evictable),
        0,
        "a put over an unfinished one used to return 0; revisit codes::put"
    );
    let unreadable = bare.get("stuck", &into.whole());
    let age = clock.now().since(before);
    assert_eq!(
        unreadable, REPLICA_IS_NOT_READY,
        "a put over an unfinished one used to write nothing; revisit the rule that keys are written once (looked at \
         most {age:?} after the first put began; beyond {DISCARD:?} this machine was slow, and nothing has changed)"
    );

    within(DISCARD * 4, "a put takes the key over", || {
        assert_eq!(bare.put("stuck", &from.whole(), Keep::Evictable), 0);
        (bare.get("stuck", &into.whole()) == 1 << 20).then_some(())
    });
    let (most, least) = (clock.now().since(before), clock.now().since(after));
    println!("the key was taken over {least:?} to {most:?} after the abandoned put began");
    assert!(
        most >= DISCARD,
        "an unfinished put used to hold its key for --put_start_discard_timeout_sec, not {most:?}"
    );
    assert_eq!(into.whole().to_vec(), from.whole().to_vec());
}

/// The space of an unfinished put stays taken (`--put_start_release_timeout_sec`, 600 s) although its writer is dead and
/// no call removes it. Tensorhold's admission must leave room for it.
#[test]
fn a_put_that_never_ended_keeps_its_space() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let harness = RealHarness { cluster };
    let bare = Bare::connect(&harness.cluster);
    let from = bare.filled(40 * MIB, 1);
    harness
        .abandon_put(&key("stuck"), 40 << 20)
        .expect("a put that never ends");
    assert_eq!(bare.remove("stuck", true), REPLICA_IS_NOT_READY);
    assert_eq!(
        bare.put("other", &from.whole(), Keep::Evictable),
        crate::bare::NO_AVAILABLE_HANDLE,
        "an unfinished put used to keep its space; revisit what admission sets aside for crashed writers"
    );
    let small = bare.filled(4096, 2);
    soon("small puts still go in", || {
        (bare.put("small", &small.whole(), Keep::Evictable) == 0).then_some(())
    });
}
