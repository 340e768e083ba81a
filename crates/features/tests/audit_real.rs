//! Audits on a real master, separate holders with SSDs, and a real etcd: what comes back from SSD, what a master loses,
//! and what a writer leaves that was stopped for too long.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects, and prints how long it took"
)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::servers::*;
use common::*;
use tensorhold_core::{Clock, ErrorKind, ObjectKey, Result, SystemClock};
use tensorhold_engine::{
    Capabilities, Engine, EngineExt, GetOutcome, HostMemory, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome,
    Region, Registrations, RemoveOutcome, Transfer, Usage,
};
use tensorhold_features::{FeatureConfig, FeatureStore, LossAudit, LossScope, OrphanAudit, Stored};
use tensorhold_testkit::{Cluster, Endpoints, Process, ProcessSpec};
use tokio::task::block_in_place;

const LEN: usize = 64 << 10;

fn repair() -> OrphanAudit {
    OrphanAudit {
        read_only: false,
        ..OrphanAudit::default()
    }
}

async fn put_all(store: &FeatureStore, name: &str, count: usize) -> Vec<Stored> {
    let mut stored = Vec::new();
    for n in 0..count {
        stored.push(put(store, item(&format!("{name}/{n}"), &[LEN], n as u64)).await);
    }
    stored
}

fn all_keys(samples: &[Stored]) -> Vec<ObjectKey> {
    samples.iter().flat_map(keys_of).collect()
}

/// How many of these objects are as wanted.
fn count(engine: &dyn Engine, keys: &[ObjectKey], wanted: fn(&Presence) -> bool) -> usize {
    let found = block_in_place(|| engine.probe(keys, WITHIN)).expect("an answer");
    found.iter().filter(|found| wanted(found)).count()
}

async fn until(what: &str, within: Duration, mut ready: impl FnMut() -> bool) -> Duration {
    let clock = SystemClock::new();
    let begun = clock.now();
    while !ready() {
        assert!(clock.now().since(begun) < within, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    clock.now().since(begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_restarted_holder_brings_back_is_gone_after_one_audit() {
    const FREED: usize = 100;
    const FOREIGN: usize = 50;
    let builder = Cluster::builder()
        .p2p_metadata(true)
        .segment_mib(128)
        .etcd_nodes(1)
        .ssd(true);
    let cluster = block_in_place(|| builder.lease_ttl(Duration::from_secs(1)).start()).expect("a cluster");
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    // A machine that others use too must not end the session.
    let store = open_for(&endpoints, engine.clone(), config(), WITHIN).await;
    let freed = put_all(&store, "freed", FREED).await;
    let kept = put_all(&store, "kept", FREED + 10).await;
    // Of other programs: some begin with this store's name, some look much like its keys.
    let foreign: Vec<ObjectKey> = (0..FOREIGN)
        .map(|n| match n % 4 {
            0 => format!("foreign/{n}"),
            1 => format!("real/chosen-by-another/{n}"),
            2 => format!("other/kept%2F{n}/g1-00000000000000aa/t0"),
            _ => format!("real/kept%2F{n}/g01-00000000000000aa/t0"),
        })
        .map(|text| ObjectKey::new(text).expect("a key"))
        .collect();
    block_in_place(|| {
        let memory = engine.allocate(LEN, WITHIN).expect("memory");
        for key in &foreign {
            let put = engine.put_one(key, &memory.whole(), &PutOptions::default(), WITHIN);
            assert!(matches!(put.expect("an outcome"), PutOutcome::Stored));
        }
    });
    let everything = [all_keys(&freed), all_keys(&kept), foreign.clone()].concat();
    let on_ssd = |found: &Presence| matches!(found, Presence::Present { ssd: 1.., .. });
    until("all are on SSD", 6 * WITHIN, || {
        count(&*engine, &everything, on_ssd) == everything.len()
    })
    .await;

    for stored in &freed {
        let lease = take(&store, stored).await;
        ack(&store, &lease).await.expect("acked");
    }
    store.drain(2 * WITHIN).await.expect("freed");
    assert_eq!(present(&*engine, &all_keys(&freed)), 0, "freed");
    let report = store.audit_orphans(repair(), WITHIN).await.expect("a report");
    assert_eq!(report.orphans, 0, "{report:?}");

    // The master forgets a dead holder only after a while, and with it what the holder brings back before.
    block_in_place(|| cluster.holder(0).kill()).expect("killed");
    until("the master drops the holder", 3 * WITHIN, || {
        present(&*engine, &everything) == 0
    })
    .await;
    block_in_place(|| cluster.holder(0).restart()).expect("restarted");
    let here = || present(&*engine, &everything);
    until("most are back, the freed ones too", 3 * WITHIN, || {
        here() == everything.len()
    })
    .await;
    let back = present(&*engine, &all_keys(&freed));
    assert_eq!(back, FREED, "the bare engine brings back what was removed");

    let clock = SystemClock::new();
    let begun = clock.now();
    let report = store.audit_orphans(repair(), WITHIN).await.expect("a report");
    eprintln!(
        "{back} objects came back; one audit took {:?}: {report:?}",
        clock.now().since(begun)
    );
    assert_eq!(
        (report.orphans, report.removed, report.complete),
        (FREED as u64, FREED as u64, true),
        "{report:?}"
    );
    assert_eq!(
        (report.objects, report.bytes),
        ((2 * FREED + 10) as u64, (FREED * LEN) as u64),
        "{report:?}"
    );
    assert_eq!(present(&*engine, &all_keys(&freed)), 0, "none is left");
    assert_eq!(present(&*engine, &foreign), FOREIGN, "foreign keys are untouched");
    for (n, stored) in kept.iter().enumerate() {
        let lease = take(&store, stored).await;
        check_tensors(&get_all(&store, &lease).await.expect("bytes"), &[LEN], n as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_forgets_everything_leaves_nobody_waiting() {
    const SAMPLES: usize = 60;
    const GOAL: Duration = Duration::from_secs(15);
    let cluster = start();
    let endpoints = cluster.endpoints();
    let settings = FeatureConfig {
        loss_grace: Duration::from_secs(4),
        ..config()
    };
    let open = || async { open_for(&endpoints, connect(&endpoints), settings.clone(), WITHIN).await };
    let (producer, consumer, auditor) = (open().await, open().await, open().await);
    let mut losses = producer.losses(LossScope::Own);
    let samples = put_all(&producer, "run", SAMPLES).await;
    let mut leases = Vec::new();
    for stored in &samples[..10] {
        leases.push(take(&consumer, stored).await);
    }
    // It waits for a sample that it has not got, and reads those that it has.
    let reader = tokio::spawn({
        let consumer = consumer.clone();
        async move {
            for lease in &leases {
                loop {
                    match get_all(&consumer, lease).await {
                        Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                        Err(error) if error.kind() == ErrorKind::Unavailable => {
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                        Err(error) => {
                            assert!(
                                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced),
                                "{error}"
                            );
                            break;
                        }
                    }
                }
            }
        }
    });
    let clock = SystemClock::new();
    block_in_place(|| cluster.master(0).restart()).expect("restarted");
    let restarted = clock.now();
    // A steward would audit again and again; the engine may not answer yet, or have no holder.
    let ids: Vec<_> = samples.iter().map(|stored| stored.reference.sample.clone()).collect();
    loop {
        let options = LossAudit {
            read_only: false,
            ..LossAudit::default()
        };
        if let Err(error) = auditor.audit_losses(options, WITHIN).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        let live = auditor
            .find(&ids, WITHIN)
            .await
            .expect("found")
            .iter()
            .flatten()
            .count();
        if live == 0 {
            break;
        }
        let took = clock.now().since(restarted);
        assert!(took < GOAL, "{live} are still live after {took:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eprintln!(
        "{SAMPLES} samples were lost {:?} after the master was back",
        clock.now().since(restarted)
    );
    // The producer is told of each, once, and makes them again.
    let mut told = BTreeSet::new();
    while told.len() < SAMPLES {
        let lost = tokio::time::timeout(WITHIN, losses.recv())
            .await
            .expect("told")
            .expect("open");
        assert!(told.insert(lost.sample.clone()), "{lost:?} was told twice");
    }
    eprintln!(
        "their producer was told of all {:?} after the master was back",
        clock.now().since(restarted)
    );
    assert!(clock.now().since(restarted) < GOAL);
    let put: BTreeSet<_> = samples.iter().map(|stored| stored.reference.clone()).collect();
    assert_eq!(told, put);
    tokio::time::timeout(WITHIN, reader)
        .await
        .expect("it hangs")
        .expect("no panic");
    until("a sample can be put again", 3 * WITHIN, || {
        let again = producer.put(item("run/0", &[LEN], 77), WITHIN);
        block_in_place(|| tokio::runtime::Handle::current().block_on(again)).is_ok()
    })
    .await;
    let lease = one(consumer
        .lease_next(&trainers(), 1, WITHIN)
        .await
        .expect("the one that was made again"));
    check_tensors(&get_all(&consumer, &lease).await.expect("bytes"), &[LEN], 77);
}

/// The variable that makes the test below the writer, and names the file that lets it go on.
const WRITER: &str = "TENSORHOLD_TEST_LATE_WRITER";
const CLUSTER: &str = "TENSORHOLD_TEST_CLUSTER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_writer_left_that_was_stopped_for_too_long_is_found() {
    if let (Ok(go), Ok(cluster)) = (std::env::var(WRITER), std::env::var(CLUSTER)) {
        return be_the_writer(go.as_ref(), &serde_json::from_str(&cluster).expect("JSON")).await;
    }
    let cluster = start();
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    let store = open_for(&endpoints, engine.clone(), config(), WITHIN).await;
    let kept = put_all(&store, "kept", 5).await;
    let go = cluster.dir().join("go");
    let program = std::env::current_exe().expect("this program");
    let spec = ProcessSpec::new("late writer", program, cluster.dir().join("late-writer.log"))
        .args([
            "--exact",
            "what_a_writer_left_that_was_stopped_for_too_long_is_found",
            "--nocapture",
        ])
        .env(WRITER, &go)
        .env(CLUSTER, serde_json::to_string(&endpoints).expect("JSON"));
    let writer = block_in_place(|| Process::spawn(&spec)).expect("a writer");
    let says = |line: &str| {
        assert!(writer.is_running(), "{}", writer.output());
        writer.output().lines().any(|said| said == line)
    };
    until("it has reserved, and is about to write", 3 * WITHIN, || {
        says("about to write")
    })
    .await;
    writer.stop().expect("stopped");
    // Its session ends, and a sweep clears up after it: no record is left.
    let clock = SystemClock::new();
    let begun = clock.now();
    let mut swept = 0;
    while swept == 0 {
        assert!(clock.now().since(begun) < 3 * WITHIN, "its reservation stays");
        swept = store.sweep(WITHIN).await.expect("swept").freed;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(listed(&*engine, "real/late/").is_empty(), "it has not written yet");
    // It goes on writing, and is killed before it notices.
    std::fs::write(&go, "").expect("a file");
    writer.resume().expect("resumed");
    until("it has written", 3 * WITHIN, || says("written")).await;
    writer.kill().expect("killed");
    let late = listed(&*engine, "real/late/");
    assert!(!late.is_empty(), "it left nothing, so this shows nothing");
    assert_eq!(
        store.sweep(WITHIN).await.expect("swept").freed,
        0,
        "no sweep finds them"
    );
    let report = store.audit_orphans(repair(), WITHIN).await.expect("a report");
    eprintln!("{} late objects: {report:?}", late.len());
    assert_eq!(
        (report.orphans, report.removed),
        (late.len() as u64, late.len() as u64),
        "{report:?}"
    );
    assert!(listed(&*engine, "real/late/").is_empty());
    assert_eq!(present(&*engine, &all_keys(&kept)), kept.len());
}

fn listed(engine: &dyn Engine, prefix: &str) -> Vec<ObjectKey> {
    block_in_place(|| engine.list(prefix, None, 1000, WITHIN))
        .expect("a list")
        .keys
}

/// Puts a sample. Its objects are written when the file is there; what comes after that, it does not live to see.
async fn be_the_writer(go: &Path, endpoints: &Endpoints) {
    let engine = Arc::new(Late {
        inner: connect(endpoints),
        go: go.to_owned(),
    });
    let store = open_as(endpoints, engine, config()).await;
    drop(store.put(item("late", &[LEN, 9 * MIB], 1), 60 * WITHIN).await);
}

/// Says what it is about to do, and waits for a file before and for its end after it has written.
#[derive(Debug)]
struct Late {
    inner: Arc<dyn Engine>,
    go: std::path::PathBuf,
}

impl Late {
    #[allow(clippy::disallowed_methods, reason = "another process decides when it goes on")]
    fn wait_for(path: &Path) {
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Engine for Late {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.inner.register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.inner.registrations()
    }

    #[allow(clippy::print_stdout, reason = "the test reads it")]
    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        println!("\nabout to write");
        Self::wait_for(&self.go);
        let written = self.inner.put(batch, options, within.max(WITHIN));
        println!("\nwritten");
        Self::wait_for(&self.go.with_extension("never"));
        written
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        self.inner.get(batch, within)
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        self.inner.remove(keys, within)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        self.inner.probe(keys, within)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.inner.list(prefix, after, limit, within)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.inner.promote(keys, within)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.inner.usage(within)
    }
}
