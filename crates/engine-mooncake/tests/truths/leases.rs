//! Which calls grant a read lease, and what a lease stops.

use std::time::Duration;

use tensorhold_core::{Clock, SystemClock};

use crate::bare::{Bare, Keep, MIB, OBJECT_HAS_LEASE, soon};
use crate::common::plain;

const TTL: Duration = Duration::from_secs(2);
/// What lies between the end of a lease and a poll on a busy machine that sees it.
const GRACE: Duration = Duration::from_secs(5);

/// Each call of the module that looks at an object grants it a read lease: a plain remove answers -706 until the TTL has
/// passed. Tensorhold's probe therefore goes by HTTP, and its remove is always forced.
#[test]
fn every_look_through_the_module_grants_a_lease() {
    type Look = fn(&Bare, &str);
    let looks: [(&str, Look); 5] = [
        ("get", |bare, key| {
            assert_eq!(bare.get(key, &bare.memory(4096).whole()), 4096)
        }),
        ("is_exist", |bare, key| assert_eq!(bare.is_exist(key), 1)),
        ("batch_is_exist", |bare, key| {
            assert_eq!(bare.batch_is_exist(&[key]), [1])
        }),
        ("get_size", |bare, key| assert_eq!(bare.get_size(key), 4096)),
        ("batch_get_replica_desc", |bare, key| {
            assert_eq!(bare.replica_desc(&[key]), 1);
        }),
    ];
    let cluster = plain().segment_mib(64).lease_ttl(TTL).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let clock = SystemClock::new();
    let from = bare.filled(4096, 1);
    for (name, _) in looks {
        assert_eq!(bare.put(name, &from.whole(), Keep::Evictable), 0);
    }
    for (name, look) in looks {
        let begin = clock.now();
        look(&bare, name);
        let end = clock.now();
        assert_eq!(
            bare.remove(name, false),
            OBJECT_HAS_LEASE,
            "the engine's {name} used to grant a read lease that a plain remove respects; revisit why Tensorhold probes \
             by HTTP and removes by force"
        );
        soon(&format!("a plain remove after the lease of {name}"), || {
            (bare.remove(name, false) == 0).then_some(())
        });
        let (least, most) = (clock.now().since(begin), clock.now().since(end));
        assert!(
            least >= TTL && most < TTL + GRACE,
            "the lease granted by {name} used to last the TTL of {TTL:?}, not {least:?}; revisit what Tensorhold says \
             about --default_kv_lease_ttl"
        );
    }
}

/// A put grants no lease, so garbage that no reader touched can be removed and evicted at once. Tensorhold relies on this
/// when it removes the objects of a failed publish.
#[test]
fn a_put_grants_no_lease() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(4096, 1);
    for keep in [Keep::Evictable, Keep::Pinned] {
        assert_eq!(bare.put("k", &from.whole(), keep), 0);
        assert_eq!(
            bare.remove("k", false),
            0,
            "the engine's put ({keep:?}) used to grant no lease; revisit how failed puts are taken back"
        );
    }
}

/// The master's HTTP `batch_query_keys` grants no lease: it is the one look at an object without side effects, and
/// Tensorhold's probe is made of it.
#[test]
fn the_http_probe_grants_no_lease() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(4096, 1);
    assert_eq!(bare.put("k", &from.whole(), Keep::Evictable), 0);
    for _ in 0..5 {
        assert_eq!(bare.probe("k"), Ok((1, 0)));
    }
    assert_eq!(
        bare.remove("k", false),
        0,
        "the HTTP probe used to grant no lease; revisit Engine::probe, which promises no side effects"
    );
    assert_eq!(bare.probe("k"), Err("OBJECT_NOT_FOUND".to_owned()));
}

/// A forced remove takes no notice of a lease, and the space can be used again at once. Tensorhold frees samples this way
/// and promises that the room is there when the call returns.
#[test]
fn a_forced_remove_ignores_leases_and_frees_at_once() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(48 * MIB, 1);
    let into = bare.memory(48 * MIB);
    for turn in 0..5 {
        let key = format!("big-{turn}");
        assert_eq!(
            bare.put(&key, &from.whole(), Keep::Pinned),
            0,
            "in turn {turn}: space used to be free as soon as a forced remove returned; revisit RemoveOutcome::Removed"
        );
        assert_eq!(bare.get(&key, &into.whole()), 48 << 20);
        assert_eq!(bare.remove(&key, false), OBJECT_HAS_LEASE);
        assert_eq!(
            bare.remove(&key, true),
            0,
            "a forced remove used to ignore leases; revisit Engine::remove"
        );
    }
}
