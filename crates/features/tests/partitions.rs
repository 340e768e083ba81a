//! A store that is divided by sample id among several clusters.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use tensorhold_core::{Clock, ErrorKind, Partition, StoreId, SystemClock, SystemRng};
use tensorhold_features::{FeatureConfig, FeatureStore, Lease, Partitions};
use tensorhold_index::store::memory::MemoryStore;

const LENS: [usize; 1] = [100];

/// A cluster of its own for each partition, and one engine.
struct Clusters {
    world: World,
    indexes: Vec<MemoryStore>,
}

impl Clusters {
    fn new(count: u32) -> Self {
        let world = World::new();
        let indexes = (0..count).map(|_| MemoryStore::new(world.clock.clone())).collect();
        Self { world, indexes }
    }

    /// A process that has all partitions open.
    async fn open(&self) -> Partitions {
        self.open_over(self.indexes.iter().map(MemoryStore::client)).await
    }

    async fn open_over(&self, clients: impl IntoIterator<Item = MemoryStore>) -> Partitions {
        let whole = StoreId::new("s").expect("a name");
        let count = u32::try_from(self.indexes.len()).expect("few");
        let mut stores = Vec::new();
        for (partition, client) in Partition::all(&whole, count).expect("names").iter().zip(clients) {
            let store = partition.store().expect("a name");
            let config = FeatureConfig {
                store: store.clone(),
                ..self.world.config()
            };
            let index = self.world.index_of(&store, client);
            // Each has a clock of its own, as stores have that are opened one by one.
            let clock = Arc::new(SystemClock::new());
            let opening = FeatureStore::open(self.world.cluster.connect(), index, config, clock, Arc::new(SystemRng));
            stores.push(opening.await.expect("a store"));
        }
        Partitions::new(stores).expect("partitions")
    }
}

async fn put_in(partitions: &Partitions, sample: &str) {
    put(partitions.of(&id(sample)), item(sample, &LENS, 1)).await;
}

/// A sample that belongs to this partition.
fn sample_in(partitions: &Partitions, number: usize, salt: u32) -> String {
    let is_there = |name: &String| std::ptr::eq(partitions.of(&id(name)), &raw const partitions.stores()[number]);
    let mut names = (0..).map(|other| format!("run/{salt}-{other}"));
    names.find(is_there).expect("one of many")
}

async fn next(partitions: &Partitions, count: usize, within: Duration) -> (usize, Vec<Lease>) {
    partitions.lease_next(&trainers(), count, within).await.expect("leases")
}

fn attempts(partitions: &Partitions, lease: &Lease) -> impl Future<Output = u32> {
    let (store, sample) = (
        partitions.of(&lease.reference().sample).clone(),
        lease.reference().sample,
    );
    async move {
        let found = one(store.find(&[sample], WITHIN).await.expect("an answer")).expect("it is live");
        found.record.groups.iter().map(|group| group.attempts).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sample_is_used_once_whichever_partition_has_it() {
    const SAMPLES: usize = 200;
    let clusters = Clusters::new(4);
    let producer = clusters.open().await;
    let names: BTreeSet<String> = (0..SAMPLES).map(|n| format!("run/{n}")).collect();
    let putting = async {
        for name in &names {
            put_in(&producer, name).await;
        }
    };
    let consume = async || {
        let process = clusters.open().await;
        let mut used: Vec<(usize, String)> = Vec::new();
        loop {
            let (at, leases) = next(&process, 3, Duration::from_secs(2)).await;
            if leases.is_empty() {
                return (process, used);
            }
            for lease in leases {
                let store = &process.stores()[at];
                check_tensors(&get_all(store, &lease).await.expect("tensors"), &LENS, 1);
                ack(store, &lease).await.expect("acked");
                used.push((at, lease.reference().sample.to_string()));
            }
        }
    };
    let ((), (first, one), (second, two)) = tokio::join!(putting, consume(), consume());
    let used: Vec<&String> = one.iter().chain(&two).map(|(_, sample)| sample).collect();
    assert_eq!(used.len(), SAMPLES, "each once");
    assert_eq!(used.into_iter().cloned().collect::<BTreeSet<_>>(), names);
    let mut by_partition = BTreeMap::<usize, usize>::new();
    for (at, _) in one.iter().chain(&two) {
        *by_partition.entry(*at).or_default() += 1;
    }
    assert_eq!(by_partition.len(), 4, "{by_partition:?}");
    for process in [first, second, producer] {
        for store in process.stores() {
            store.close(WITHIN).await.expect("closed");
        }
    }
    clusters.world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_that_waits_gets_the_sample_of_any_partition_and_keeps_no_other() {
    let clusters = Clusters::new(3);
    let (producer, consumer) = (clusters.open().await, Arc::new(clusters.open().await));
    for round in 0..6 {
        let waiting = tokio::spawn({
            let consumer = Arc::clone(&consumer);
            async move { next(&consumer, 1, WITHIN).await }
        });
        let names: Vec<String> = (0..3).map(|number| sample_in(&producer, number, round)).collect();
        // At once, so that several partitions have an answer.
        tokio::join!(
            put_in(&producer, &names[0]),
            put_in(&producer, &names[1]),
            put_in(&producer, &names[2])
        );
        let (at, first) = waiting.await.expect("a task");
        let mut taken = vec![(at, one(first))];
        while taken.len() < 3 {
            let (at, leases) = next(&consumer, 1, WITHIN).await;
            taken.push((at, one(leases)));
        }
        let of_each: BTreeSet<usize> = taken.iter().map(|(at, _)| *at).collect();
        assert_eq!(of_each.len(), 3, "one of each partition");
        for (at, lease) in &taken {
            assert_eq!(attempts(&consumer, lease).await, 1, "what went back cost no attempt");
            ack(&consumer.stores()[*at], lease).await.expect("acked");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_away_holds_up_no_sample_of_another() {
    let clusters = Clusters::new(3);
    let clients: Vec<MemoryStore> = clusters.indexes.iter().map(MemoryStore::client).collect();
    let producer = clusters.open().await;
    let consumer = clusters.open_over(clients.iter().cloned()).await;
    let away = clients[1].faults();
    for (round, is_silent) in [(0, true), (1, false)] {
        for number in [0, 2] {
            put_in(&producer, &sample_in(&producer, number, round)).await;
        }
        match is_silent {
            true => away.slow(3 * WITHIN),
            false => away.outage(usize::MAX),
        }
        let clock = SystemClock::new();
        let begun = clock.now();
        for _ in 0..2 {
            let (at, leases) = next(&consumer, 1, WITHIN).await;
            assert_ne!(at, 1);
            ack(&consumer.stores()[at], &one(leases)).await.expect("acked");
        }
        let took = clock.now().since(begun);
        assert!(took < WITHIN / 4, "{took:?}");
        away.slow(Duration::ZERO);
        away.outage(0);
        let (_, none) = next(&consumer, 1, 20 * SOON).await;
        assert!(none.is_empty());
    }
}

/// A caller that takes in a loop sees the error, and the samples of the others meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_refuses_ends_a_take_at_once() {
    let clusters = Clusters::new(3);
    let clients: Vec<MemoryStore> = clusters.indexes.iter().map(MemoryStore::client).collect();
    let producer = clusters.open().await;
    let consumer = clusters.open_over(clients.iter().cloned()).await;
    let clock = SystemClock::new();
    let begun = clock.now();
    clients[0].faults().outage(usize::MAX);
    for (round, is_silent) in [(0, false), (1, true)] {
        if is_silent {
            clients[1].faults().slow(3 * WITHIN);
        }
        let refused = consumer.lease_next(&trainers(), 1, 3 * WITHIN).await;
        assert_eq!(refused.expect_err("one refuses").kind(), ErrorKind::Unavailable);
        put_in(&producer, &sample_in(&producer, 2, round)).await;
        let (at, leases) = loop {
            if let Ok(taken) = consumer.lease_next(&trainers(), 1, 3 * WITHIN).await {
                break taken;
            }
        };
        ack(&consumer.stores()[at], &one(leases)).await.expect("acked");
    }
    clients[0].faults().outage(0);
    put_in(&producer, &sample_in(&producer, 0, 2)).await;
    assert_eq!(next(&consumer, 1, WITHIN).await.0, 0);
    let took = clock.now().since(begun);
    assert!(took < WITHIN, "{took:?}");
}

/// A take that waits looks once more first, and the deadline may fall into that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_said_it_has_none_has_none_at_the_deadline() {
    const CALL: Duration = Duration::from_secs(1);
    let clusters = Clusters::new(2);
    let clients: Vec<MemoryStore> = clusters.indexes.iter().map(MemoryStore::client).collect();
    let (asked, consumer) = (
        clusters.open_over(clients.iter().cloned()).await,
        clusters.open_over(clients.iter().cloned()).await,
    );
    clients[0].faults().slow(CALL);
    let clock = SystemClock::new();
    let begun = clock.now();
    let ready = asked.stores()[0].lease_ready(&trainers(), 1, WITHIN).await;
    assert!(ready.expect("an answer").is_empty());
    let says_so_after = clock.now().since(begun);
    let (_, none) = next(&consumer, 1, says_so_after + CALL / 2).await;
    assert!(none.is_empty());
}

/// A partition that could not be asked may have samples.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_there_is_none_is_not_said_while_a_cluster_is_away() {
    let clusters = Clusters::new(3);
    let clients: Vec<MemoryStore> = clusters.indexes.iter().map(MemoryStore::client).collect();
    let consumer = clusters.open_over(clients.iter().cloned()).await;
    for is_silent in [true, false] {
        match is_silent {
            true => clients[1].faults().slow(3 * WITHIN),
            false => clients[1].faults().outage(usize::MAX),
        }
        let taken = consumer.lease_next(&trainers(), 1, 10 * SOON).await;
        assert_eq!(taken.expect_err("one cannot be asked").kind(), ErrorKind::Unavailable);
        clients[1].faults().slow(Duration::ZERO);
        clients[1].faults().outage(0);
    }
}

#[tokio::test]
async fn stores_that_are_no_partitions_are_refused() {
    let clusters = Clusters::new(3);
    let mut stores = clusters.open().await.stores().to_vec();
    stores.swap(0, 1);
    let refused = Partitions::new(stores.clone()).expect_err("not in order");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    stores.swap(0, 1);
    stores.pop();
    Partitions::new(stores).expect_err("not all");
    Partitions::new(Vec::new()).expect_err("none");
    Partitions::new(vec![clusters.world.open().await]).expect_err("no partition");
}

#[tokio::test]
async fn closing_ends_a_take_of_any_partition() {
    let clusters = Clusters::new(3);
    let (producer, consumer) = (clusters.open().await, clusters.open().await);
    let closing = async {
        let waits = async |store: &FeatureStore| store.health(WITHIN).await.operations > 0;
        for store in consumer.stores() {
            while !waits(store).await {
                tokio::task::yield_now().await;
            }
        }
        for store in consumer.stores() {
            store.close(WITHIN).await.expect("closed");
        }
    };
    let begun = tokio::time::Instant::now();
    let group = trainers();
    let (taken, ()) = tokio::join!(consumer.lease_next(&group, 1, 10 * WITHIN), closing);
    assert!(begun.elapsed() < WITHIN, "after {:?}", begun.elapsed());
    let error = taken.expect_err("closed");
    assert!(error.to_string().contains("this store is closed"), "{error}");
    for number in 0..3 {
        let sample = sample_in(&producer, number, 1);
        put_in(&producer, &sample).await;
        let lease = one(producer.stores()[number]
            .lease_next(&group, 1, WITHIN)
            .await
            .expect("leases"));
        assert_eq!(attempts(&producer, &lease).await, 1);
    }
}
