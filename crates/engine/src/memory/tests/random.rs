//! The invariants of the module's documentation, under random calls and fates.

use std::collections::BTreeMap;

use tensorhold_core::{Rng, SeededRng};

use super::super::state::{Entry, State, Tier};
use super::*;

/// M1, M2 and the ends of M4.
fn check(state: &State) {
    let mut used: BTreeMap<_, u64> = state.segments.keys().map(|id| (*id, 0)).collect();
    for (key, entry) in &state.entries {
        let Entry::Readable(object) = entry else { continue };
        assert!(!object.replicas.is_empty(), "M2: {key} has no copy");
        let tiers: Vec<_> = object
            .replicas
            .iter()
            .map(|replica| replica.tier == Tier::Ssd)
            .collect();
        assert!(tiers.is_sorted(), "M2: {key} has SSD before DRAM");
        for replica in &object.replicas {
            let used = used.get_mut(&replica.segment).expect("M2: mounted");
            if replica.tier == Tier::Dram {
                *used += replica.len();
            }
        }
    }
    for held in &state.held {
        for segment in &held.segments {
            *used.get_mut(segment).expect("M2: mounted") += held.bytes;
        }
    }
    for (id, segment) in &state.segments {
        assert_eq!(segment.used, used[id], "M1: segment {id}");
        assert!(segment.used <= segment.capacity, "M1: segment {id}");
    }
    let beats = state.holders.iter().filter_map(|holder| holder.next_beat);
    assert!(beats.chain(state.pressure.due).all(|at| at >= state.now), "M4");
}

/// What a run leaves behind, for comparison.
fn run(seed: u64, steps: u32) -> Vec<(ObjectKey, Presence)> {
    let rng = SeededRng::new(seed);
    let bench = Bench::new(MemoryConfig {
        holders: 3,
        segment_bytes: 8 * KIB,
        lease_ttl: seconds(2),
        ssd: rng.chance(700).then(|| SsdConfig {
            heartbeat: seconds(1),
            promote_per_heartbeat: 2,
            ..SsdConfig::default()
        }),
        ..MemoryConfig::default()
    });
    for _ in 0..steps {
        let name = format!("{}", rng.below(30));
        let holder = usize::try_from(rng.below(3)).expect("small");
        match rng.below(100) {
            0..35 => {
                let pin = [Pin::Evictable, Pin::Soft(seconds(5)), Pin::Hard][usize::from(rng.chance(300)) + holder % 2];
                let options = PutOptions {
                    pin,
                    replicas: 1 + u32::from(rng.chance(200)),
                    ..PutOptions::default()
                };
                let len = 1 + usize::try_from(rng.below(3000)).expect("small");
                bench.put_with(&name, &vec![name.as_bytes()[0]; len], &options);
            }
            35..55 => drop(bench.get(&name)),
            55..65 => drop(bench.remove(&name)),
            65..70 => drop(bench.engine.promote(&[key(&name)], WITHIN)),
            70..90 => bench.clock.advance(Duration::from_millis(rng.below(1500))),
            90..92 => bench.wait(rng.below(700)),
            92..94 => drop(bench.cluster.abandon_put(&key(&name), rng.below(2000))),
            94..96 => drop(bench.cluster.kill_holder(holder)),
            96..98 => drop(bench.cluster.restart_holder(holder)),
            98 => drop(bench.cluster.kill_master()),
            _ => bench.cluster.restart_master(),
        }
        bench.cluster.with(|state| check(state));
    }
    bench.cluster.restart_master();
    let objects = bench.cluster.objects();
    objects
        .into_iter()
        .map(|key| (key.clone(), bench.probe(key.as_str())))
        .collect()
}

#[test]
fn invariants_hold_whatever_happens() {
    for seed in 0..60 {
        run(seed, 400);
    }
}

#[test]
fn the_same_calls_end_in_the_same_state() {
    for seed in 0..5 {
        assert_eq!(run(seed, 300), run(seed, 300));
    }
}

#[test]
fn catching_up_ends_however_far_the_clock_is_moved() {
    let bench = Bench::with_ssd(1);
    for i in 0..10 {
        bench.stored(&format!("{i}"), Pin::Evictable);
    }
    bench.put("x", Pin::Hard);
    bench.clock.advance(Duration::MAX);
    bench.loads("9");
    bench.clock.advance(Duration::MAX);
    assert!(bench.used() > 0);
}
