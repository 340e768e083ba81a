//! Holders and the master die and come back.

use super::*;

#[test]
fn a_dead_holders_objects_seem_present_for_a_while_and_then_vanish() {
    let bench = Bench::small(1);
    bench.stored("a", Pin::Hard);
    assert!(bench.cluster.kill_holder(0));
    assert!(!bench.cluster.kill_holder(0), "once is enough");
    assert!(!bench.cluster.kill_holder(7) && !bench.cluster.restart_holder(7));
    bench.fails("a");
    bench.wait(9);
    bench.fails("a");
    assert_eq!(bench.copies("a"), (1, 0));
    assert_eq!(bench.usage().dram_capacity, 10 * KIB);
    bench.wait(1);
    bench.misses("a");
    let gone = Usage {
        mounts: 1,
        ..Usage::default()
    };
    assert_eq!(bench.usage(), gone);
}

#[test]
fn puts_to_a_dead_holder_fail_until_its_loss_is_noticed() {
    let bench = Bench::small(2);
    bench.stored("a", Pin::Hard);
    bench.cluster.kill_holder(1);
    // The other one has more room, so the master hands out its space.
    match bench.put("b", Pin::Hard) {
        PutOutcome::Failed(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.fact("segment"), Some("holder-1"));
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(bench.probe("b"), Presence::Absent, "the put was revoked");
    bench.wait(10);
    bench.stored("b", Pin::Hard);
    bench.loads("a");
    bench.loads("b");
}

#[test]
fn without_holders_there_is_no_room() {
    let bench = Bench::small(1);
    bench.cluster.kill_holder(0);
    bench.wait(10);
    assert!(matches!(bench.put("a", Pin::Hard), PutOutcome::Full));
    bench.cluster.restart_holder(0);
    bench.stored("a", Pin::Hard);
}

#[test]
fn a_holder_that_comes_back_is_empty_and_its_old_objects_still_haunt_the_list() {
    let bench = Bench::small(1);
    bench.stored("a", Pin::Hard);
    bench.cluster.kill_holder(0);
    bench.wait(3);
    bench.cluster.restart_holder(0);
    bench.fails("a");
    bench.stored("b", Pin::Hard);
    bench.wait(7);
    bench.misses("a");
    bench.loads("b");
    assert_eq!(bench.usage().dram_capacity, 10 * KIB);
}

#[test]
fn a_second_replica_outlives_its_holder() {
    let bench = Bench::small(2);
    let options = PutOptions {
        replicas: 2,
        ..PutOptions::default()
    };
    bench.put_with("a", &[b'a'; 1024], &options);
    bench.cluster.kill_holder(1);
    bench.wait(10);
    assert_eq!(bench.copies("a"), (1, 0));
    bench.loads("a");
}

#[test]
fn a_dead_put_dies_with_its_holder() {
    let bench = Bench::small(1);
    bench.cluster.abandon_put(&key("a"), KIB);
    bench.cluster.kill_holder(0);
    bench.wait(10);
    assert_eq!(bench.probe("a"), Presence::Absent);
}

#[test]
fn without_a_master_nothing_answers() {
    let bench = Bench::small(1);
    bench.stored("a", Pin::Hard);
    assert!(bench.cluster.kill_master());
    assert!(!bench.cluster.kill_master());
    bench.fails("a");
    match bench.put("b", Pin::Hard) {
        PutOutcome::Failed(error) => assert_eq!(error.retry(), tensorhold_core::Retry::Ambiguous),
        outcome => panic!("{outcome:?}"),
    }
    assert!(matches!(bench.remove("a"), RemoveOutcome::Failed(_)));
    let outcomes = bench.engine.promote(&[key("a")], WITHIN).expect("lawful");
    assert!(matches!(outcomes[..], [crate::PromoteOutcome::Failed(_)]));
    let probe = bench.engine.probe_one(&key("a"), WITHIN).expect_err("nobody there");
    assert_eq!(probe.kind(), ErrorKind::Unavailable);
    assert_eq!(
        bench.engine.usage(WITHIN).expect_err("nobody there").kind(),
        ErrorKind::Unavailable
    );
    assert!(!bench.cluster.abandon_put(&key("b"), 1));
}

#[test]
fn a_restarted_master_has_lost_dram_pinned_or_not_and_clients_work_again() {
    let bench = Bench::with_ssd(1);
    bench.stored("p", Pin::Hard);
    bench.stored("e", Pin::Evictable);
    bench.wait(1);
    bench.stored("f", Pin::Evictable);
    bench.cluster.kill_master();
    bench.wait(60);
    bench.cluster.restart_master();
    bench.misses("p");
    bench.misses("f");
    assert_eq!(bench.copies("e"), (0, 1));
    bench.loads("e");
    assert_eq!(bench.used(), 0);
    bench.stored("p", Pin::Hard);
    bench.loads("p");
}

#[test]
fn holders_may_come_and_go_while_the_master_is_dead() {
    let bench = Bench::small(3);
    bench.cluster.kill_holder(0);
    bench.cluster.kill_master();
    bench.cluster.kill_holder(1);
    bench.cluster.restart_holder(0);
    bench.cluster.restart_master();
    assert_eq!(bench.usage().dram_capacity, 20 * KIB);
    bench.cluster.restart_holder(1);
    assert_eq!(bench.usage().dram_capacity, 30 * KIB);
}
