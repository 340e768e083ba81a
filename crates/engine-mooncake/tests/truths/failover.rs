//! Two masters: what a failover costs.

use std::time::Duration;

use holdfast_core::{Clock, SystemClock};

use crate::bare::{Bare, Keep, MIB, within};
use crate::common::plain;

/// With two masters and etcd, the leader's death costs an outage of some ten seconds and no object. This is the setup
/// that Holdfast recommends, and its recovery counts on the objects.
#[test]
fn objects_survive_the_death_of_the_leader() {
    const OUTAGE: Duration = Duration::from_secs(30);
    const OBJECTS: u64 = 20;
    let cluster = plain().segment_mib(64).ha(true).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let clock = SystemClock::new();
    let into = bare.memory(MIB);
    let objects: Vec<_> = (0..OBJECTS)
        .map(|n| (format!("object-{n}"), bare.filled(MIB, n)))
        .collect();
    for (key, from) in &objects {
        assert_eq!(bare.put(key, &from.whole(), Keep::Pinned), 0);
    }

    let leader = cluster.leader().expect("a leader");
    cluster.master(leader).kill().expect("killed");
    let dead = clock.now();
    within(OUTAGE * 2, "the standby takes over", || {
        let (key, from) = &objects[0];
        let read = bare.get(key, &into.whole()) == 1 << 20;
        let fresh = format!("fresh-{:?}", clock.now());
        (read && bare.put(&fresh, &from.whole(), Keep::Pinned) == 0).then_some(())
    });
    let outage = clock.now().since(dead);
    println!("an outage of {outage:?}");
    assert!(
        outage < OUTAGE,
        "a failover used to take some 10 s, not {outage:?}; revisit the deadlines that Holdfast advises"
    );
    assert_ne!(cluster.leader().expect("a leader"), leader);
    for (key, from) in &objects {
        assert_eq!(
            bare.get(key, &into.whole()),
            1 << 20,
            "{key}: objects used to survive a failover; revisit what Holdfast recovers"
        );
        assert!(into.whole().to_vec() == from.whole().to_vec(), "{key} has other bytes");
    }
    drop((into, objects));
    closing_takes_half_a_minute(bare);
}

/// Closing a client of such a cluster takes about 30 s, failover or not. Holdfast's `close_within` gives up before.
fn closing_takes_half_a_minute(bare: Bare) {
    let clock = SystemClock::new();
    let begin = clock.now();
    drop(bare);
    let took = clock.now().since(begin);
    println!("closing took {took:?}");
    assert!(
        took > Duration::from_secs(15) && took < Duration::from_secs(60),
        "closing a client of masters in etcd used to take 30 s, not {took:?}; revisit MooncakeConfig::close_within"
    );
}
