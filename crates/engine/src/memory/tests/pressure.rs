//! A full pool, eviction, leases and pins.

use super::*;

/// Ten of ten are in: nine would not be above the watermark.
fn full(pin: Pin) -> Bench {
    let bench = Bench::small(1);
    for i in 0..10 {
        bench.stored(&format!("{i}"), pin);
        bench.clock.advance(Duration::from_millis(1));
    }
    bench
}

fn present(bench: &Bench) -> String {
    bench.cluster.objects().iter().map(ToString::to_string).collect()
}

#[test]
fn a_full_pool_refuses_at_once_evicts_later_and_a_retry_succeeds() {
    let bench = full(Pin::Evictable);
    assert!(matches!(bench.put("x", Pin::Evictable), PutOutcome::Full));
    assert!(matches!(bench.put("x", Pin::Evictable), PutOutcome::Full), "not yet");
    assert_eq!(present(&bench), "0123456789");
    bench.clock.advance(Duration::from_millis(10));
    bench.stored("x", Pin::Evictable);
    assert!(!present(&bench).contains('0'), "the oldest went");
    assert!(present(&bench).contains('9'));
}

#[test]
fn use_above_the_watermark_is_evicted_without_a_refusal() {
    let bench = full(Pin::Evictable);
    bench.wait(1);
    assert_eq!(
        present(&bench),
        "23456789",
        "ten percent above, with five to spare, is more than one object"
    );
}

#[test]
fn the_watermark_is_the_real_masters() {
    let bench = Bench::small(1);
    bench.put_bytes("a", &[0; 9 << 10], Pin::Evictable);
    bench.wait(1);
    assert_eq!(present(&bench), "a", "90 % are not above 90 %");
    bench.put_bytes("b", &[0; 1], Pin::Evictable);
    bench.wait(1);
    assert_eq!(present(&bench), "b", "a byte more is");
}

#[test]
fn room_for_a_large_object_takes_as_many_as_it_needs() {
    let bench = full(Pin::Evictable);
    assert!(matches!(bench.put_bytes("x", &[0; 4096], Pin::Hard), PutOutcome::Full));
    bench.wait(1);
    assert!(matches!(
        bench.put_bytes("x", &[0; 4096], Pin::Hard),
        PutOutcome::Stored
    ));
    assert_eq!(present(&bench), "456789x");
}

#[test]
fn hard_pinned_objects_are_never_evicted() {
    let bench = full(Pin::Hard);
    assert!(matches!(bench.put("x", Pin::Hard), PutOutcome::Full));
    bench.wait(3600);
    assert!(matches!(bench.put("x", Pin::Hard), PutOutcome::Full));
    assert_eq!(present(&bench), "0123456789");
}

#[test]
fn leased_objects_are_evicted_only_when_their_lease_ends() {
    let bench = full(Pin::Evictable);
    for i in 0..10 {
        bench.loads(&format!("{i}"));
    }
    for _ in 0..9 {
        assert!(
            matches!(bench.put("x", Pin::Hard), PutOutcome::Full),
            "leases starve eviction"
        );
        bench.wait(1);
    }
    assert_eq!(present(&bench), "0123456789");
    bench.wait(1);
    bench.stored("x", Pin::Hard);
}

#[test]
fn reading_makes_an_object_young() {
    let bench = full(Pin::Evictable);
    bench.loads("0");
    bench.wait(1);
    assert_eq!(present(&bench), "03456789");
}

#[test]
fn soft_pinned_objects_go_last_and_only_as_long_as_their_time_lasts() {
    let bench = Bench::small(1);
    bench.stored("s", Pin::Soft(seconds(60)));
    for i in 1..10 {
        bench.stored(&format!("{i}"), Pin::Evictable);
    }
    bench.wait(1);
    assert_eq!(present(&bench), "3456789s", "the soft-pinned one is older and stays");
    assert!(matches!(
        bench.put_bytes("x", &[0; 10 << 10], Pin::Hard),
        PutOutcome::Full
    ));
    bench.wait(1);
    assert_eq!(present(&bench), "", "nothing else was left");

    bench.stored("s", Pin::Soft(seconds(60)));
    for i in 1..10 {
        bench.wait(10);
        bench.stored(&format!("{i}"), Pin::Evictable);
    }
    bench.wait(1);
    assert_eq!(present(&bench), "23456789", "its time is over, and it was the oldest");
}

#[test]
fn an_object_larger_than_a_segment_is_refused_for_ever() {
    let bench = Bench::small(3);
    let too_large = vec![0; 10 * 1024 + 1];
    assert!(matches!(bench.put_bytes("x", &too_large, Pin::Hard), PutOutcome::Full));
    bench.wait(60);
    assert!(matches!(bench.put_bytes("x", &too_large, Pin::Hard), PutOutcome::Full));
}

#[test]
fn nothing_is_evicted_for_room_that_cannot_be_made() {
    let bench = Bench::small(1);
    bench.stored("p", Pin::Hard);
    bench.stored("a", Pin::Evictable);
    bench.stored("b", Pin::Evictable);
    assert!(matches!(
        bench.put_bytes("x", &[0; 10 << 10], Pin::Hard),
        PutOutcome::Full
    ));
    bench.wait(60);
    assert_eq!(
        present(&bench),
        "bp",
        "one step of the eviction ratio, as for any refusal"
    );
}
