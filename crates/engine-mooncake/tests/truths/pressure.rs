//! Full DRAM: which puts are refused, which objects are evicted, which stay.

use std::time::Duration;

use tensorhold_core::{Clock, SystemClock};

use crate::bare::{Bare, Keep, MIB, NO_AVAILABLE_HANDLE, soon};
use crate::common::plain;

/// How long a refusal may take on a busy machine and still be called immediate.
const AT_ONCE: Duration = Duration::from_secs(1);

/// With DRAM full of pinned objects a put is refused with -200 at once, and a forced batch_remove makes room at once.
/// Tensorhold's `PutOutcome::Full` and its back-pressure are made of this.
#[test]
fn dram_full_of_pins_refuses_at_once_and_removes_free_at_once() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let clock = SystemClock::new();
    let from = bare.filled(8 * MIB, 1);
    let mut keys = Vec::new();
    let (code, took) = loop {
        let key = format!("pinned-{}", keys.len());
        let begin = clock.now();
        let code = bare.put(&key, &from.whole(), Keep::Pinned);
        if code != 0 {
            break (code, clock.now().since(begin));
        }
        keys.push(key);
        assert!(keys.len() <= 8, "more went in than there is room");
    };
    println!(
        "{} objects of 8 MiB went into 64 MiB; the next was refused after {took:?}",
        keys.len()
    );
    assert_eq!(
        code, NO_AVAILABLE_HANDLE,
        "a put into DRAM full of pins used to be -200; revisit codes::put"
    );
    assert!(
        took < AT_ONCE,
        "the refusal used to come at once, not after {took:?}; revisit what PutOutcome::Full promises"
    );
    for _ in 0..5 {
        assert_eq!(bare.put("more", &from.whole(), Keep::Pinned), NO_AVAILABLE_HANDLE);
        assert_eq!(bare.put("more", &from.whole(), Keep::Evictable), NO_AVAILABLE_HANDLE);
    }
    assert_eq!(
        bare.batch_remove(&keys, true),
        vec![0; keys.len()],
        "a hard pin used to stop eviction, not a remove; revisit Engine::remove"
    );
    for key in &keys {
        assert_eq!(
            bare.put(key, &from.whole(), Keep::Pinned),
            0,
            "a forced batch_remove used to free space at once; revisit RemoveOutcome::Removed"
        );
    }
}

/// With DRAM full of objects that may go, a put is refused too, but it sets eviction going and a later try succeeds.
/// Tensorhold tries again after `Full` before it makes its callers wait.
#[test]
fn a_refused_put_sets_eviction_going() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let small = bare.filled(8 * MIB, 1);
    // 56 of 64 MiB: below the watermark at which the master evicts of its own accord.
    for n in 0..7 {
        assert_eq!(bare.put(&format!("old-{n}"), &small.whole(), Keep::Evictable), 0);
    }
    let big = bare.filled(16 * MIB, 2);
    assert_eq!(
        bare.put("new", &big.whole(), Keep::Evictable),
        NO_AVAILABLE_HANDLE,
        "eviction used to be asynchronous, so that the first put is refused; revisit the retry after Full"
    );
    soon(
        "a retry succeeds: a refused put used to set eviction going; revisit the retry after Full",
        || (bare.put("new", &big.whole(), Keep::Evictable) == 0).then_some(()),
    );
    let left = (0..7).filter(|n| bare.probe(&format!("old-{n}")).is_ok()).count();
    println!("{left} of 7 objects stayed");
    assert!(left < 7, "somebody must have gone");
}

/// A lease keeps an object from eviction: with everything looked at, puts are refused until the TTL ends. Tensorhold
/// grants no leases that it does not need and asks for a short TTL.
#[test]
fn leases_starve_eviction() {
    const TTL: Duration = Duration::from_secs(3);
    let cluster = plain().segment_mib(64).lease_ttl(TTL).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let clock = SystemClock::new();
    let small = bare.filled(8 * MIB, 1);
    let keys: Vec<_> = (0..7).map(|n| format!("old-{n}")).collect();
    for key in &keys {
        assert_eq!(bare.put(key, &small.whole(), Keep::Evictable), 0);
    }
    let names: Vec<_> = keys.iter().map(String::as_str).collect();
    let begin = clock.now();
    assert_eq!(bare.batch_is_exist(&names), vec![1; 7]);

    let big = bare.filled(16 * MIB, 2);
    let mut refusals = 0;
    soon("a put succeeds after the leases", || {
        let code = bare.put("new", &big.whole(), Keep::Evictable);
        assert!(code == 0 || code == NO_AVAILABLE_HANDLE, "{code}");
        refusals += u32::from(code != 0);
        (code == 0).then_some(())
    });
    let waited = clock.now().since(begin);
    println!("refused {refusals} times, for {waited:?} with leases of {TTL:?}");
    assert!(
        refusals > 0 && waited >= TTL,
        "leased objects used to be safe from eviction until the TTL of {TTL:?}, not {waited:?}; revisit why Tensorhold \
         avoids leases"
    );
}

/// A hard pin keeps an object from eviction, whatever the pressure. All that Tensorhold stores is pinned: it decides
/// itself what goes.
#[test]
fn pinned_objects_survive_pressure() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let (precious, bulk) = (bare.filled(8 * MIB, 1), bare.filled(4 * MIB, 2));
    assert_eq!(bare.put("pinned-0", &precious.whole(), Keep::Pinned), 0);
    assert_eq!(bare.put("pinned-1", &precious.whole(), Keep::Pinned), 0);
    for n in 0..48 {
        soon("there is always something else to evict", || {
            (bare.put(&format!("bulk-{n}"), &bulk.whole(), Keep::Evictable) == 0).then_some(())
        });
    }
    let gone = (0..48).filter(|n| bare.probe(&format!("bulk-{n}")).is_err()).count();
    assert!(
        gone >= 36,
        "48 × 4 MiB went through 48 MiB, and only {gone} were evicted"
    );
    let into = bare.memory(8 * MIB);
    for key in ["pinned-0", "pinned-1"] {
        assert_eq!(
            bare.get(key, &into.whole()),
            8 << 20,
            "a hard pin used to keep {key} from eviction; revisit Pin::Hard, on which all of Tensorhold rests"
        );
        assert_eq!(into.whole().to_vec(), precious.whole().to_vec());
    }
}
