//! The SSD tier: what goes down, what comes up, and what comes back from the dead.

use std::time::Duration;

use tensorhold_core::{Clock, SystemClock};
use tensorhold_testkit::Cluster;

use crate::bare::{Bare, Keep, MIB, OBJECT_HAS_LEASE, soon, within};
use crate::common::{RECOVERY, plain};

/// Some of the holder's heartbeats, at which copies go down and come up; the test kit sets it to a second.
const HEARTBEATS: Duration = Duration::from_secs(4);
/// Short, because what goes down to SSD or is read cannot be evicted before it has passed.
const TTL: Duration = Duration::from_secs(1);

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("object-{n}")).collect()
}

/// A cluster with an SSD tier and objects that have a copy there.
fn offloaded(keys: &[String], keep: Keep, lease_ttl: Duration) -> (Cluster, Bare) {
    let cluster = plain()
        .segment_mib(64)
        .lease_ttl(lease_ttl)
        .ssd(true)
        .start()
        .expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(MIB, 1);
    for key in keys {
        assert_eq!(bare.put(key, &from.whole(), keep), 0);
    }
    soon(
        &format!("every {keep:?} object gets a copy on SSD, as it used to; revisit what Tensorhold says about SSD"),
        || keys.iter().all(|key| bare.probe(key) == Ok((1, 1))).then_some(()),
    );
    (cluster, bare)
}

/// Puts objects that may go, until `done`; then removes them. They stay out of the way of those that are watched.
fn crowd(bare: &Bare, what: &str, mut done: impl FnMut() -> bool) {
    let bulk = bare.filled(4 * MIB, 9);
    let mut others = Vec::new();
    within(RECOVERY, what, || {
        let other = format!("other-{}", others.len());
        if bare.put(&other, &bulk.whole(), Keep::Evictable) == 0 {
            others.push(other);
        }
        done().then_some(())
    });
    bare.batch_remove(&others, true);
}

/// Objects that are on SSD and in DRAM no more.
fn on_ssd_only(keys: &[String]) -> (Cluster, Bare) {
    let (cluster, bare) = offloaded(keys, Keep::Evictable, TTL);
    crowd(&bare, "every object is crowded out of DRAM", || {
        keys.iter().all(|key| bare.probe(key) == Ok((0, 1)))
    });
    (cluster, bare)
}

/// Force-removes objects, lets `restart` happen, and waits for them to be back, bytes and all.
fn come_back(keep: Keep, restart: impl FnOnce(&Cluster)) {
    let keys = keys(10);
    let (cluster, bare) = offloaded(&keys, keep, TTL);
    assert_eq!(bare.batch_remove(&keys, true), vec![0; keys.len()]);
    assert!(keys.iter().all(|key| bare.probe(key).is_err()), "all are gone");
    restart(&cluster);
    let (from, into) = (bare.filled(MIB, 1), bare.memory(MIB));
    within(
        RECOVERY,
        "removed objects come back from SSD: a remove used to leave the copy there; if it does not any more, revisit \
         how Tensorhold tells the dead from the living after a restart",
        || {
            let back = keys.iter().any(|key| bare.get(key, &into.whole()) == 1 << 20);
            (back && into.whole().to_vec() == from.whole().to_vec()).then_some(())
        },
    );
    SystemClock::new().sleep(HEARTBEATS / 2);
    let back = keys.iter().filter(|key| bare.probe(key).is_ok()).count();
    println!("{back} of {} removed objects ({keep:?}) came back", keys.len());
}

/// A forced remove leaves the copy on SSD, and a holder that restarts offers it again: removed objects are readable,
/// pinned ones too. Tensorhold must recognise such objects, and remove them again.
#[test]
fn removed_objects_come_back_when_a_holder_restarts() {
    come_back(Keep::Pinned, |cluster| cluster.holder(0).restart().expect("restarted"));
}

/// The same after a restart of the master, without any holder's.
#[test]
fn removed_objects_come_back_when_the_master_restarts() {
    come_back(Keep::Evictable, |cluster| {
        cluster.master(0).restart().expect("restarted")
    });
}

/// Going down to SSD grants a read lease, as if the holder had read the object: for one TTL it is neither evicted nor
/// plainly removed. Room made by SSD comes a TTL later than one would think; Tensorhold asks for a short one.
#[test]
fn going_down_to_ssd_grants_a_lease() {
    let keys = keys(1);
    let (_cluster, bare) = offloaded(&keys, Keep::Evictable, 5 * TTL);
    let key = &keys[0];
    assert_eq!(
        bare.remove(key, false),
        OBJECT_HAS_LEASE,
        "going down to SSD used to grant a lease; revisit the TTL that Tensorhold advises"
    );
    soon("the lease ends", || (bare.remove(key, false) == 0).then_some(()));
}

/// A pinned object gets a copy on SSD like any other, unless the master has `--offload_on_evict`: then it never does,
/// because it is never evicted. With the first, Tensorhold's samples survive a restart; with the second they cannot.
#[test]
fn pinned_objects_go_down_when_put_but_not_when_evicted() {
    let pinned = keys(5);
    drop(offloaded(&pinned, Keep::Pinned, TTL));

    let on_evict = plain().segment_mib(64).lease_ttl(TTL).ssd(true).offload_on_evict(true);
    let cluster = on_evict.start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(MIB, 1);
    for key in &pinned {
        assert_eq!(bare.put(key, &from.whole(), Keep::Pinned), 0);
    }
    assert_eq!(bare.put("evictable", &from.whole(), Keep::Evictable), 0);
    crowd(&bare, "what may be evicted goes down to SSD when it is", || {
        bare.probe("evictable") == Ok((0, 1))
    });
    SystemClock::new().sleep(HEARTBEATS);
    for key in &pinned {
        assert_eq!(
            bare.probe(key),
            Ok((1, 0)),
            "with --offload_on_evict a pinned object used to stay in DRAM only; revisit what Tensorhold says about SSD"
        );
    }
}

/// A pinned object that comes back from SSD after a restart has lost its pin: once up in DRAM it is evicted like any
/// other. Tensorhold cannot count on a pin across restarts of the master.
#[test]
fn a_pin_does_not_come_back_from_ssd() {
    let keys = keys(3);
    let (cluster, bare) = offloaded(&keys, Keep::Pinned, TTL);
    cluster.master(0).restart().expect("restarted");
    within(
        RECOVERY,
        "pinned objects with a copy on SSD come back after a restart of the master",
        || keys.iter().all(|key| bare.probe(key) == Ok((0, 1))).then_some(()),
    );
    let names: Vec<_> = keys.iter().map(String::as_str).collect();
    within(RECOVERY, "they come up to DRAM", || {
        bare.replica_desc(&names);
        keys.iter().all(|key| bare.probe(key) == Ok((1, 1))).then_some(())
    });
    crowd(
        &bare,
        "their pin is gone, so they are evicted; if not any more, revisit what survives a restart",
        || keys.iter().all(|key| bare.probe(key) == Ok((0, 1))),
    );
}

/// A get of an object that is on SSD only reads it from there and brings it up to DRAM some heartbeats later.
/// `batch_get_replica_desc` brings it up without reading: Tensorhold's `promote` is made of that.
#[test]
fn a_get_and_a_descriptor_bring_an_object_up() {
    let keys = keys(2);
    let (_cluster, bare) = on_ssd_only(&keys);
    let (from, into) = (bare.filled(MIB, 1), bare.memory(MIB));
    soon("an object on SSD is readable", || {
        (bare.get(&keys[0], &into.whole()) == 1 << 20).then_some(())
    });
    assert_eq!(into.whole().to_vec(), from.whole().to_vec());
    assert_eq!(bare.replica_desc(&[&keys[1]]), 1);
    for (key, by) in [(&keys[0], "get"), (&keys[1], "batch_get_replica_desc")] {
        soon(
            &format!("{by} used to bring an object up from SSD; revisit Engine::promote"),
            || matches!(bare.probe(key), Ok((1.., _))).then_some(()),
        );
    }
}

/// Neither `is_exist`, `batch_is_exist` nor the HTTP probe bring an object up. Tensorhold may probe as often as it likes
/// without moving anything between tiers.
#[test]
fn looking_does_not_bring_an_object_up() {
    let keys = keys(2);
    let (_cluster, bare) = on_ssd_only(&keys);
    let clock = SystemClock::new();
    let begin = clock.now();
    while clock.now().since(begin) < HEARTBEATS {
        assert_eq!(
            (bare.is_exist(&keys[0]), bare.batch_is_exist(&[&keys[0]])),
            (1, vec![1])
        );
        for (key, by) in [(&keys[0], "is_exist"), (&keys[1], "the HTTP probe")] {
            assert_eq!(
                bare.probe(key),
                Ok((0, 1)),
                "{by} used to leave an object on SSD; revisit Engine::probe, which promises no side effects"
            );
        }
        clock.sleep(Duration::from_millis(100));
    }
}
