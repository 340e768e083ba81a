//! Seeded plans of faults in engine and index, under several processes at once: a get never returns other bytes than
//! were committed, and when the faults end, everything can be cleared up.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use tensorhold_core::{ErrorKind, Result, Retry, Rng, SeededRng};
use tensorhold_engine::{FaultEngine, FaultPlan, MemoryConfig, MemoryEngine};
use tensorhold_features::{FeatureConfig, FeatureStore, Lease, PutItem, TensorIn, TensorOut, Wanted};
use tensorhold_index::store::memory::{Fate, MemoryStore};

const SAMPLES: u64 = 6;
const CALL: Duration = Duration::from_secs(2);

/// What happened, so that a run in which nothing did is seen.
#[derive(Default)]
struct Seen {
    good_puts: AtomicU64,
    bad_puts: AtomicU64,
    good_gets: AtomicU64,
    bad_gets: AtomicU64,
    corrupt: AtomicU64,
    lost: AtomicU64,
}

struct Process {
    store: FeatureStore,
    engine: Arc<FaultEngine<MemoryEngine>>,
    txn_store: MemoryStore,
    rng: SeededRng,
}

fn small(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

/// The tensors of a sample tell by their names which bytes they must have.
fn draw_item(rng: &SeededRng) -> PutItem {
    let sample = format!("run/{}", rng.below(SAMPLES));
    let tensor = |n: u64| {
        let (len, seed) = (small(1 + rng.below(20_000)), rng.below(1 << 20));
        TensorIn::new(spec(&format!("{n}:{seed}"), len), lent(pattern(len, seed)))
    };
    PutItem {
        sample: id(&sample),
        tensors: (0..1 + rng.below(3)).map(tensor).collect(),
        publication: publication(),
    }
}

/// What came of a get: right bytes, or an error that may be.
fn judge(got: Result<Vec<TensorOut>>, seen: &Seen) {
    match got {
        Ok(tensors) => {
            for tensor in &tensors {
                let seed = tensor.spec.name().as_str().split(':').nth(1).expect("a seed");
                let expected = pattern(small(tensor.spec.bytes()), seed.parse().expect("a number"));
                assert!(tensor.to_vec() == expected, "{}: wrong bytes", tensor.spec);
            }
            seen.good_gets.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => {
            let count = match error.kind() {
                ErrorKind::Corrupt => &seen.corrupt,
                ErrorKind::NotFound => &seen.lost,
                ErrorKind::Fenced | ErrorKind::Unavailable => &seen.bad_gets,
                _ => panic!("{error:?}"),
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Process {
    async fn step(&self, held: &mut Vec<Lease>, seen: &Seen) {
        if self.rng.chance(100) {
            let fates = [Fate::Applied, Fate::NotApplied];
            self.txn_store.faults().lose_reply(fates[small(self.rng.below(2))]);
        }
        match self.rng.below(10) {
            0..3 => {
                let items = (0..1 + self.rng.below(2)).map(|_| draw_item(&self.rng)).collect();
                for result in self.store.put_many(items, CALL).await {
                    match result {
                        Ok(_) => seen.good_puts.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            assert_ne!(error.kind(), ErrorKind::Internal, "{error:?}");
                            seen.bad_puts.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            }
            3..5 => {
                let next = self.store.lease_next(&trainers(), 2, Duration::from_millis(20)).await;
                held.extend(next.unwrap_or_default());
            }
            5 if self.rng.chance(500) => {
                let sample = id(&format!("run/{}", self.rng.below(SAMPLES)));
                if let Ok(glimpse) = self.store.find_live(&sample, None, CALL).await {
                    judge(self.store.get_unleased(glimpse, Wanted::All, CALL).await, seen);
                }
            }
            5 => {
                let ids: Vec<_> = (0..SAMPLES).map(|n| id(&format!("run/{n}"))).collect();
                if let Ok(found) = self.store.find(&ids, CALL).await {
                    let found: Vec<_> = found.into_iter().flatten().map(|found| found.reference).collect();
                    held.extend(
                        self.store
                            .lease_shared(&found, CALL)
                            .await
                            .into_iter()
                            .flatten()
                            .take(2),
                    );
                }
            }
            6..8 => {
                for lease in held.iter() {
                    let names: Vec<_> = lease
                        .description()
                        .tensors()
                        .iter()
                        .map(|t| t.spec.name().clone())
                        .collect();
                    let some = Wanted::Names(vec![names[small(self.rng.below(names.len() as u64))].clone()]);
                    let wanted = if self.rng.chance(500) { Wanted::All } else { some };
                    judge(self.store.get(lease, wanted, CALL).await, seen);
                }
            }
            8 => {
                let these: Vec<Lease> = std::mem::take(held);
                let (used, unused): (Vec<_>, Vec<_>) = these.into_iter().partition(|lease| lease.group().is_some());
                self.store.ack(&used, CALL).await;
                self.store.release(&unused, CALL).await;
            }
            _ => {
                held.pop(); // dropped
                let sample = id(&format!("run/{}", self.rng.below(SAMPLES)));
                if self.rng.chance(300) {
                    self.store.abort(&[sample], CALL).await;
                } else if let Err(error) = self.store.sweep(CALL).await {
                    assert!(
                        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Fenced),
                        "{error:?}"
                    );
                }
            }
        }
    }
}

async fn run(seed: u64, seen: &Arc<Seen>) {
    let world = World::with(MemoryConfig {
        segment_bytes: 4 << 20,
        ..MemoryConfig::default()
    });
    let plan = FaultPlan::new(seed)
        .with_all(40)
        .with_holder_loss(4, 5)
        .with_master_loss(10, 4)
        .with_delay(30, Duration::from_millis(3));
    let mut processes = Vec::new();
    for n in 0..3 {
        let txn_store = world.txn_store.client();
        let plan = if n == 0 {
            plan.clone()
        } else {
            FaultPlan::new(seed * 31 + n).with_all(25)
        };
        let engine = Arc::new(FaultEngine::new(world.cluster.connect(), plan, world.clock.clone()));
        let config = FeatureConfig {
            call_within: Duration::from_millis(500),
            // Every second run on a sealed store.
            keyring: seed.is_multiple_of(2).then(|| common::raw::keys(&["k1"])),
            ..world.config()
        };
        let store = world.open_on(engine.clone(), txn_store.clone(), config).await;
        processes.push(Process {
            store,
            engine,
            txn_store,
            rng: SeededRng::new(seed * 1000 + n),
        });
    }
    let tasks: Vec<_> = processes
        .into_iter()
        .map(|process| {
            let seen = Arc::clone(seen);
            tokio::spawn(async move {
                let mut held = Vec::new();
                for _ in 0..40 {
                    process.step(&mut held, &seen).await;
                }
                process
            })
        })
        .collect();
    let mut processes = Vec::new();
    for task in tasks {
        processes.push(task.await.expect("no panic"));
    }
    for process in &processes {
        process.engine.pause();
        process.txn_store.faults().outage(0);
    }
    clear_up(&world, &processes, seed).await;
}

/// Without faults, everything can be used up or aborted, and then nothing is left.
async fn clear_up(world: &World, processes: &[Process], seed: u64) {
    // Faults of the index that were asked for and have not struck yet still may.
    for process in processes {
        while process.store.drain(WITHIN).await.is_err() {}
    }
    let store = world.open().await;
    let ids: Vec<_> = (0..SAMPLES).map(|n| id(&format!("run/{n}"))).collect();
    for process in processes {
        for result in process.store.abort(&ids, WITHIN).await {
            let error = result.err();
            let fine = error
                .as_ref()
                .is_none_or(|e| e.kind() == ErrorKind::NotFound || e.retry() != Retry::Never);
            assert!(fine, "seed {seed}: {error:?}");
        }
        process.store.close(WITHIN).await.expect("closed");
    }
    // Sessions that ended let go of what they still held; sweeps see to the rest.
    for _ in 0..200 {
        store.abort(&ids, WITHIN).await;
        store.sweep(WITHIN).await.expect("swept");
        store.drain(WITHIN).await.expect("drained");
        if world.cluster.objects().is_empty() && world.records().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let keys: BTreeSet<_> = world.cluster.objects().into_iter().collect();
    panic!("seed {seed}: left behind: {keys:?} {:?}", world.records());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_wrong_bytes_and_nothing_left_behind() {
    let seen = Arc::new(Seen::default());
    for seed in 1..=25 {
        run(seed, &seen).await;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "puts {} good, {} not; gets {} good, {} corrupt, {} lost, {} otherwise not",
        count(&seen.good_puts),
        count(&seen.bad_puts),
        count(&seen.good_gets),
        count(&seen.corrupt),
        count(&seen.lost),
        count(&seen.bad_gets)
    );
    assert!(
        count(&seen.good_puts) > 100 && count(&seen.bad_puts) > 20,
        "the run was worth something"
    );
    assert!(count(&seen.good_gets) > 50 && count(&seen.corrupt) > 5 && count(&seen.bad_gets) > 5);
}
