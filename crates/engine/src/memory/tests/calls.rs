//! Puts, gets, removes, probes and registrations, without pressure or failures.

use super::*;
use crate::Transfer;

#[test]
fn a_put_on_a_key_that_exists_says_stored_and_writes_nothing() {
    let bench = Bench::small(1);
    bench.stored("a", Pin::Hard);
    assert!(matches!(bench.put_bytes("a", b"other", Pin::Hard), PutOutcome::Stored));
    bench.loads("a");
    assert_eq!(bench.used(), KIB);
}

#[test]
fn a_get_wants_the_exact_length() {
    let bench = Bench::small(1);
    bench.stored("a", Pin::Hard);
    for len in [1, 1023, 1025] {
        let (outcome, bytes) = bench.get_into("a", len);
        assert!(
            matches!(outcome, GetOutcome::WrongLength { stored: 1024 }),
            "{outcome:?}"
        );
        assert_eq!(bytes, vec![0; len], "nothing is transferred");
    }
    bench.misses("b");
}

#[test]
fn objects_come_from_and_go_to_several_buffers() {
    let bench = Bench::small(1);
    let region = bench.engine.allocate(12, WITHIN).expect("memory");
    region.whole().write(0, b"hold----fast").expect("fits");
    let part = |range| region.span(range).expect("inside");
    let put = [Transfer::scattered(key("a"), vec![part(0..4), part(8..12)])];
    let outcomes = bench.engine.put(&put, &PutOptions::default(), WITHIN).expect("lawful");
    assert!(matches!(outcomes[..], [PutOutcome::Stored]));

    let back = bench.engine.allocate(8, WITHIN).expect("memory");
    let parts = vec![back.span(7..8).expect("inside"), back.span(0..7).expect("inside")];
    let outcomes = bench
        .engine
        .get(&[Transfer::scattered(key("a"), parts)], WITHIN)
        .expect("lawful");
    assert!(matches!(outcomes[..], [GetOutcome::Loaded]));
    assert_eq!(back.whole().to_vec(), b"oldfasth");
}

#[test]
fn a_get_leases_and_a_probe_does_not() {
    let bench = Bench::small(1);
    bench.stored("a", Pin::Hard);
    assert!(!bench.cluster.leased(&key("a")), "a put grants none");
    bench.probe("a");
    assert!(!bench.cluster.leased(&key("a")));
    bench.loads("a");
    assert!(bench.cluster.leased(&key("a")));
    bench.wait(9);
    assert!(bench.cluster.leased(&key("a")));
    bench.wait(1);
    assert!(!bench.cluster.leased(&key("a")));
}

#[test]
fn a_remove_ignores_leases_and_frees_at_once() {
    let bench = Bench::small(1);
    for i in 0..10 {
        bench.stored(&format!("{i}"), Pin::Hard);
        bench.loads(&format!("{i}"));
    }
    assert!(matches!(bench.put("x", Pin::Hard), PutOutcome::Full));
    assert!(matches!(bench.remove("3"), RemoveOutcome::Removed));
    assert!(matches!(bench.remove("3"), RemoveOutcome::Absent));
    bench.stored("x", Pin::Hard);
    bench.misses("3");
}

#[test]
fn usage_and_objects_add_up() {
    let bench = Bench::small(3);
    for name in ["c", "a", "b"] {
        bench.stored(name, Pin::Hard);
    }
    let usage = bench.usage();
    assert_eq!(
        (usage.dram_capacity, usage.dram_used, usage.objects),
        (30 * KIB, 3 * KIB, 3)
    );
    assert_eq!(bench.cluster.objects(), [key("a"), key("b"), key("c")]);
    assert_eq!(
        bench.probe("a"),
        Presence::Present {
            dram: 1,
            ssd: 0,
            bytes: KIB
        }
    );
    assert_eq!(bench.probe("d"), Presence::Absent);
}

#[test]
fn replicas_go_to_distinct_holders_as_far_as_there_are_any() {
    let bench = Bench::small(2);
    let options = PutOptions {
        replicas: 3,
        ..PutOptions::default()
    };
    assert!(matches!(
        bench.put_with("a", &[b'a'; 1024], &options),
        PutOutcome::Stored
    ));
    assert_eq!(bench.copies("a"), (2, 0));
    assert_eq!(bench.used(), 2 * KIB);
    let none = PutOptions {
        replicas: 0,
        ..PutOptions::default()
    };
    let region = bench.engine.allocate(1, WITHIN).expect("memory");
    let refused = bench.engine.put_one(&key("b"), &region.whole(), &none, WITHIN);
    assert_eq!(refused.expect_err("no copies").kind(), ErrorKind::Invalid);
}

#[test]
fn preferred_segments_come_first() {
    let bench = Bench::small(3);
    let options = PutOptions {
        preferred_segments: vec!["holder-2".to_owned()],
        ..PutOptions::default()
    };
    for name in ["a", "b", "c"] {
        assert!(matches!(bench.put_with(name, &[1; 1024], &options), PutOutcome::Stored));
    }
    bench.cluster.kill_holder(2);
    bench.wait(10);
    assert!(bench.cluster.objects().is_empty());
}

#[test]
fn clients_of_one_cluster_see_each_others_objects_but_not_each_others_memory() {
    let bench = Bench::small(1);
    bench.stored("a", Pin::Hard);
    let other = bench.cluster.connect();
    let region = other.allocate(1024, WITHIN).expect("memory");
    let outcome = other.get_one(&key("a"), &region.whole(), WITHIN).expect("lawful");
    assert!(matches!(outcome, GetOutcome::Loaded));
    let foreign = bench.engine.get_one(&key("a"), &region.whole(), WITHIN);
    assert_eq!(foreign.expect_err("foreign memory").kind(), ErrorKind::Invalid);
}

#[test]
fn registrations_are_counted_exactly() {
    let bench = Bench::small(1);
    let region = bench.engine.allocate(4096, WITHIN).expect("memory");
    let span = region.span(10..20).expect("inside");
    let count = bench.engine.registrations();
    assert_eq!((count.regions, count.bytes, count.stuck), (1, 4096, 0));
    drop(region);
    assert_eq!(bench.engine.registrations().regions, 1, "a span holds it");
    drop(span);
    assert_eq!(bench.engine.registrations(), crate::Registrations::default());
}

#[test]
fn unlawful_calls_do_nothing() {
    let bench = Bench::new(MemoryConfig {
        max_batch: 2,
        ..MemoryConfig::default()
    });
    let region = bench.engine.allocate(8, WITHIN).expect("memory");
    let one = |name: &str| Transfer::new(key(name), region.whole());
    let options = PutOptions::default();
    for batch in [
        vec![one("a"), one("b"), one("c")],
        vec![one("a"), one("a")],
        vec![one("a"), Transfer::scattered(key("b"), Vec::new())],
    ] {
        let refused = bench.engine.put(&batch, &options, WITHIN).expect_err("unlawful");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    let late = bench
        .engine
        .put(&[one("a")], &options, Duration::ZERO)
        .expect_err("no time");
    assert_eq!(late.kind(), ErrorKind::Unavailable);
    assert!(bench.cluster.objects().is_empty());
    assert!(bench.engine.get(&[], WITHIN).expect("lawful").is_empty());
}

#[test]
fn a_put_that_never_ended_blocks_its_key_and_then_its_space() {
    let bench = Bench::small(1);
    assert!(bench.cluster.abandon_put(&key("a"), 4 * KIB));
    assert!(!bench.cluster.abandon_put(&key("a"), KIB), "the key is taken");
    assert!(!bench.cluster.abandon_put(&key("b"), 7 * KIB), "there is no room");
    bench.wait(29);
    bench.stored("a", Pin::Hard);
    assert_eq!(bench.probe("a"), Presence::Unfinished, "nothing was written");
    bench.misses("a");
    assert!(matches!(bench.remove("a"), RemoveOutcome::Unfinished));
    assert_eq!(bench.used(), 4 * KIB);

    bench.wait(1);
    bench.stored("a", Pin::Hard);
    bench.loads("a");
    assert_eq!(bench.used(), 5 * KIB, "the dead put's space is still held");
    bench.wait(569);
    assert_eq!(bench.used(), 5 * KIB);
    bench.wait(1);
    assert_eq!(bench.used(), KIB);
    bench.loads("a");
}

#[test]
fn a_put_that_never_ended_is_forgotten_with_its_space() {
    let bench = Bench::small(1);
    bench.cluster.abandon_put(&key("a"), 4 * KIB);
    bench.wait(600);
    assert_eq!(bench.probe("a"), Presence::Absent);
    assert!(matches!(bench.remove("a"), RemoveOutcome::Absent));
    assert_eq!(bench.used(), 0);
}
