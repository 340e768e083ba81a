//! Offload, SSD-only objects and promotion.

use super::*;
use crate::PromoteOutcome;

/// Ten unpinned objects on SSD only: a pinned object of all of DRAM pushed them out, and was removed.
fn cold(promote_per_heartbeat: u32) -> Bench {
    let bench = Bench::with_ssd(promote_per_heartbeat);
    for i in 0..10 {
        bench.stored(&format!("{i}"), Pin::Evictable);
    }
    bench.wait(1);
    assert!(matches!(
        bench.put_bytes("x", &[0; 10 << 10], Pin::Hard),
        PutOutcome::Full
    ));
    bench.wait(1);
    assert!(matches!(
        bench.put_bytes("x", &[0; 10 << 10], Pin::Hard),
        PutOutcome::Stored
    ));
    assert!((0..10).all(|i| bench.copies(&format!("{i}")) == (0, 1)));
    bench.remove("x");
    assert_eq!(bench.used(), 0);
    bench
}

fn in_dram(bench: &Bench) -> usize {
    (0..10).filter(|i| bench.copies(&format!("{i}")).0 == 1).count()
}

#[test]
fn unpinned_objects_get_an_ssd_copy_at_the_next_heartbeat_and_pinned_ones_do_not() {
    let bench = Bench::with_ssd(1);
    bench.clock.advance(Duration::from_millis(400));
    bench.stored("a", Pin::Evictable);
    bench.stored("s", Pin::Soft(seconds(5)));
    bench.stored("p", Pin::Hard);
    bench.clock.advance(Duration::from_millis(599));
    assert_eq!(bench.copies("a"), (1, 0));
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(bench.copies("a"), (1, 1));
    assert_eq!(bench.copies("s"), (1, 1));
    bench.wait(60);
    assert_eq!(bench.copies("p"), (1, 0));
    assert_eq!(bench.usage().ssd_used, 2 * KIB);
    assert_eq!(bench.cluster.bucket(0), [key("a"), key("s")]);
}

#[test]
fn what_waits_for_ssd_is_not_evicted_before_its_heartbeat() {
    let bench = Bench::with_ssd(1);
    for i in 0..10 {
        bench.stored(&format!("{i}"), Pin::Evictable);
    }
    assert!(matches!(bench.put("x", Pin::Hard), PutOutcome::Full));
    bench.clock.advance(Duration::from_millis(900));
    assert!(matches!(bench.put("x", Pin::Hard), PutOutcome::Full));
    bench.clock.advance(Duration::from_millis(200));
    bench.stored("x", Pin::Hard);
    assert_eq!(bench.copies("0"), (0, 1), "evicted, and still there");
    bench.loads("0");
}

#[test]
fn a_hit_promotes_at_a_later_heartbeat_and_only_so_many_at_once() {
    let bench = cold(4);
    for i in 0..9 {
        bench.loads(&format!("{i}"));
    }
    assert_eq!(in_dram(&bench), 0, "not at once");
    bench.wait(1);
    assert_eq!(in_dram(&bench), 4);
    bench.wait(1);
    assert_eq!(in_dram(&bench), 8);
    bench.wait(1);
    assert_eq!(in_dram(&bench), 9, "nobody asked for the tenth");
    assert_eq!(bench.copies("0"), (1, 1));
    bench.loads("0");
}

#[test]
fn a_promote_promotes_too_and_a_probe_does_not() {
    let bench = cold(4);
    let outcomes = bench.engine.promote(&[key("3"), key("none")], WITHIN).expect("lawful");
    assert!(matches!(outcomes[..], [PromoteOutcome::Asked, PromoteOutcome::Absent]));
    bench.probe("4");
    bench.wait(1);
    assert_eq!((bench.copies("3"), bench.copies("4")), ((1, 1), (0, 1)));
    let outcomes = bench.engine.promote(&[key("3")], WITHIN).expect("lawful");
    assert!(matches!(outcomes[..], [PromoteOutcome::InDram]));
    bench.wait(60);
    assert_eq!(in_dram(&bench), 1);
}

#[test]
fn promotion_waits_for_room_below_the_watermark() {
    let bench = cold(4);
    assert!(matches!(
        bench.put_bytes("x", &[0; 10 << 10], Pin::Hard),
        PutOutcome::Stored
    ));
    bench.loads("0");
    bench.wait(600);
    assert_eq!(in_dram(&bench), 0);
    bench.remove("x");
    bench.wait(1);
    assert_eq!(in_dram(&bench), 1);
}

#[test]
fn without_promotion_nothing_comes_up() {
    let bench = Bench::new(MemoryConfig {
        ssd: Some(SsdConfig {
            promotion: false,
            ..SsdConfig::default()
        }),
        ..MemoryConfig::default()
    });
    bench.stored("a", Pin::Evictable);
    bench.wait(10);
    bench.cluster.restart_holder(0);
    bench.wait(10);
    let outcomes = bench.engine.promote(&[key("a")], WITHIN).expect("lawful");
    assert!(matches!(outcomes[..], [PromoteOutcome::Asked]));
    bench.loads("a");
    bench.wait(600);
    assert_eq!(bench.copies("a"), (0, 1));
}

#[test]
fn removed_objects_come_back_from_ssd_without_their_pin_when_their_holder_restarts() {
    let bench = Bench::with_ssd(1);
    bench.stored("a", Pin::Soft(seconds(3600)));
    bench.stored("b", Pin::Hard);
    bench.wait(1);
    assert!(matches!(bench.remove("a"), RemoveOutcome::Removed));
    assert!(matches!(bench.remove("b"), RemoveOutcome::Removed));
    bench.misses("a");
    assert_eq!(bench.cluster.bucket(0), [key("a")], "the bucket keeps it");
    bench.cluster.restart_holder(0);
    assert_eq!(bench.copies("a"), (0, 1));
    bench.loads("a");
    bench.misses("b");
}

#[test]
fn removed_objects_come_back_from_ssd_when_the_master_restarts() {
    let bench = Bench::with_ssd(1);
    bench.stored("a", Pin::Evictable);
    bench.wait(1);
    bench.remove("a");
    bench.cluster.restart_master();
    bench.loads("a");
    bench.wait(2);
    assert_eq!(bench.copies("a"), (1, 1), "the hit promoted it");
}

#[test]
fn pinned_objects_reach_ssd_only_where_that_is_asked_for() {
    let bench = Bench::new(MemoryConfig {
        ssd: Some(SsdConfig {
            offload_pinned: true,
            ..SsdConfig::default()
        }),
        ..MemoryConfig::default()
    });
    bench.stored("p", Pin::Hard);
    bench.wait(10);
    assert_eq!(bench.copies("p"), (1, 1));
    bench.remove("p");
    bench.cluster.restart_master();
    bench.loads("p");
}
