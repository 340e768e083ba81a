//! Several sessions, uneven sizes, deaths and lost replies, as drawn by lot: LC5 at every step, and everybody gets through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tensorhold_core::{ErrorKind, Rng as _, SeededRng};
use tensorhold_index::Index;
use tensorhold_index::store::memory::Fate;

use crate::world::{Client, WITHIN, World, ended};

const PRODUCERS: u64 = 8;
const ROUNDS: u64 = 12;

/// Looks at the books all the time, until it is told to stop.
fn auditor(world: &Arc<World>, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    let (world, stop) = (Arc::clone(world), Arc::clone(stop));
    tokio::spawn(async move {
        let mut looks = 0;
        while !stop.load(Ordering::Relaxed) {
            world.books();
            looks += 1;
            tokio::task::yield_now().await;
        }
        looks
    })
}

/// Sweeps, and frees what others have left.
fn sweeper(world: &Arc<World>, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
    let (world, stop) = (Arc::clone(world), Arc::clone(stop));
    tokio::spawn(async move {
        let client = world.join_drawing(99).await;
        while !stop.load(Ordering::Relaxed) {
            client.sweep().await;
            for task in client.index.to_free(None, 100, WITHIN).await.expect("a list").tasks {
                client.freed(&task.sample).await.expect("freed");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

struct Producer {
    world: Arc<World>,
    client: Arc<Client>,
    /// Half of them live in one process.
    shares: bool,
    rng: SeededRng,
    deaths: Arc<AtomicUsize>,
}

impl Producer {
    async fn die(&mut self, seed: u64) {
        assert!(self.world.txn_store.expire(self.client.session.id()));
        self.deaths.fetch_add(1, Ordering::Relaxed);
        self.client = match self.shares {
            true => self.client.another().await,
            false => self.world.join_drawing(seed).await,
        };
    }

    async fn work(mut self, number: u64, most: u64) {
        for round in 0..ROUNDS {
            let seed = number * 1000 + round;
            let name = format!("{number}/{round}");
            let bytes = 1 + self.rng.below(most);
            if self.rng.chance(150) {
                let fate = if self.rng.chance(500) {
                    Fate::Applied
                } else {
                    Fate::NotApplied
                };
                for _ in 0..self.rng.below(3) {
                    self.client.txn_store.faults().spare();
                }
                self.client.txn_store.faults().lose_reply(fate);
            }
            if self.rng.chance(80) {
                // A caller gives up, or its session ends, in the middle of a wait.
                let wait = crate::world::waiting(&self.client, &format!("{name}/x"), bytes, Duration::from_millis(5));
                if self.rng.chance(500) {
                    tokio::task::yield_now().await;
                    self.die(seed).await;
                }
                // Refused, fenced or unclear: what is reserved all the same ends with its session or its time.
                if let Ok(sample) = ended(wait).await {
                    let abort = self.client.index.abort(&self.client.session, &[sample], WITHIN).await;
                    let died = |result: &tensorhold_core::Result<()>| {
                        result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced)
                    };
                    assert!(
                        abort[0].is_ok()
                            || died(&abort[0])
                            || abort[0]
                                .as_ref()
                                .is_err_and(|error| error.kind() == ErrorKind::NotFound),
                        "{abort:?}"
                    );
                }
            }
            let sample = match self.client.reserve(&name, bytes, WITHIN).await {
                Ok(sample) => sample,
                Err(error) => panic!("{name} waits for {bytes} for ever: {error:?}"),
            };
            if self.rng.chance(60) {
                self.die(seed + 500).await;
                continue;
            }
            self.client.commit(&sample).await.expect("committed");
            self.client.consume(&sample).await.expect("consumed");
            // The sweeper may be faster.
            let freed = self.client.freed(&sample).await;
            assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

async fn everybody_gets_through(seed: u64, budget: u64, most: u64) {
    let world = Arc::new(World::with_budget(budget).await);
    let stop = Arc::new(AtomicBool::new(false));
    let (auditor, sweeper) = (auditor(&world, &stop), sweeper(&world, &stop));
    let deaths = Arc::new(AtomicUsize::new(0));
    let mut producers = Vec::new();
    let process = world.join_drawing(seed).await;
    for number in 0..PRODUCERS {
        let shares = number % 2 == 0;
        let producer = Producer {
            world: Arc::clone(&world),
            client: match shares {
                true => process.another().await,
                false => world.join_drawing(seed * 100 + number).await,
            },
            shares,
            rng: SeededRng::new(seed * 100 + number),
            deaths: Arc::clone(&deaths),
        };
        producers.push(tokio::spawn(producer.work(number, most)));
    }
    for producer in producers {
        tokio::time::timeout(Duration::from_secs(60), producer)
            .await
            .expect("in time")
            .expect("no panic");
    }
    // What was given to those who did not wait for it is reserved until its time is up; everything else comes back.
    stop.store(true, Ordering::Relaxed);
    ended(sweeper).await;
    assert!(ended(auditor).await > 10);
    assert!(deaths.load(Ordering::Relaxed) > 0, "nobody died: not much was shown");
    let last = world.join().await;
    for entry in world.txn_store.sessions() {
        if entry != last.session.id() {
            world.txn_store.expire(entry);
        }
    }
    last.sweep().await;
    for task in last.index.to_free(None, 100, WITHIN).await.expect("a list").tasks {
        last.freed(&task.sample).await.expect("freed");
    }
    last.sweep().await;
    assert_eq!(world.books().paid, 0);
    assert!(world.keys_with("/b/w/").is_empty() && world.keys_with("/h/").is_empty());
    let all = last.reserve("all", budget, WITHIN).await;
    assert!(all.as_ref().is_ok_and(|_| world.books().paid == budget), "{all:?}");
    assert_eq!(all.map_err(|error| error.kind()).err(), None::<ErrorKind>);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uneven_sizes_on_a_small_budget() {
    for seed in 1..=4 {
        everybody_gets_through(seed, 20, 9).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_up_to_the_whole_budget() {
    for seed in 5..=7 {
        everybody_gets_through(seed, 12, 12).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_that_is_nearly_enough() {
    for seed in 8..=10 {
        everybody_gets_through(seed, 60, 9).await;
    }
}
