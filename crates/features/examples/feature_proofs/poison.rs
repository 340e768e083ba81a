//! Proof 5: one bad record harms one record.
//!
//! Any client of etcd can write a value that is no record, and a later release writes records that this one does not
//! know. Among many good samples there are many records that cannot be read, make impossible claims, belong to no
//! sample, or come from the future. All good samples are delivered with the right bytes and freed. Quarantine lists
//! exactly the bad records. Those of a later release are where they were.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tensorhold_core::{Clock, DType, Deadline, Digest, SampleId, SystemClock, TensorName, TensorSpec};
use tensorhold_features::{FeatureStore, PutItem, TensorIn, Wanted};
use tensorhold_index::store::{Read, Transaction, TxnStore, Write};
use tensorhold_index_etcd::EtcdStore;
use tensorhold_testkit::Cluster;

use crate::pattern;
use crate::report::{Report, rounded};
use crate::world::{STORE, Settings, WITHIN, publication, right, runtime, trainers};

const SAMPLE: usize = 4096;
/// How many samples one put or one take is about.
const AT_ONCE: usize = 50;
/// How many producers and consumers there are, each in turn.
const WORKERS: usize = 4;
/// The proof gives up after this.
const LONGEST: Duration = Duration::from_secs(900);

/// What stands under a bad key, and what should become of it.
struct Bad {
    key: String,
    value: Vec<u8>,
    /// Whether a later release wrote it: it stays.
    later: bool,
    /// What kind it is, for people.
    kind: &'static str,
}

fn retired(more: &str, plan: &str) -> Vec<u8> {
    let plan = plan.replace('"', "\\\"");
    let head = r#""generation":1,"nonce":5,"producer":1,"bytes":1,"readers":[],"reason":"Aborted","failed_frees":0"#;
    format!(r#"{{{head}{more},"plan":"{plan}"}}"#).into_bytes()
}

/// A live sample of the first generation that waits for the trainers, with this description.
fn live(more: &str, description: &[u8]) -> Vec<u8> {
    let groups = r#"[{"group":"trainers","attempts":0,"progress":"Waiting"}]"#;
    let head = r#""generation":1,"nonce":5,"producer":1,"bytes":1,"readers":[],"retain":false,"max_attempts":3"#;
    let record = format!(r#"{{{head}{more},"groups":{groups}}}"#);
    [record.as_bytes(), b"\0", description].concat()
}

/// Where the ready list has a sample of the first generation.
fn ready(sample: &str) -> String {
    let lane = Digest::of(sample.as_bytes()).as_u128() % 32;
    format!("q/trainers/{lane:02x}/{:016x}/{sample}", 1)
}

/// The bad records number `n`, of the kinds in turn. Their names lie before, among and behind those of the good ones.
fn bad(n: usize, good: usize) -> Vec<Bad> {
    let place = ["a", "good.", "z"][(n / 10) % 3];
    let (name, generation) = (format!("{place}bad{n:05}"), format!("{:016x}", 1));
    let free = format!("f/{name}/{generation}");
    let one = |kind, later, key: String, value: Vec<u8>| {
        vec![Bad {
            key,
            value,
            later,
            kind,
        }]
    };
    match n % 10 {
        0 => one("no record", false, free, b"garbage".to_vec()),
        1 => one(
            "a record without its fields",
            false,
            free,
            br#"{"generation":1,"reason":"New"}"#.to_vec(),
        ),
        2 => {
            let plan = r#"{"v":1,"tensors":[["t",18446744073709551615]]}"#;
            one("a plan of too many objects", false, free, retired("", plan))
        }
        // A few of them, since each is a megabyte.
        3 if n % 100 == 3 => one("a megabyte of nothing", false, free, vec![b'x'; 1_000_000]),
        3 => one("no plan", false, free, retired("", "free me")),
        4 => {
            let key = format!("q/trainers/{:02x}/{generation}/{name}", n % 32);
            one("an entry of the ready list", false, key, b"{".to_vec())
        }
        5 => one("an entry that no sample calls for", false, ready(&name), Vec::new()),
        6 => one(
            "another's reservation of a good name",
            false,
            format!("p/good.{:05}", n % good),
            b"{}".to_vec(),
        ),
        7 => {
            let value = live("", b"no description");
            // The entry of the ready list goes with its record; it is not in quarantine by itself.
            let entry = Bad {
                key: ready(&name),
                value: value.clone(),
                later: false,
                kind: "",
            };
            let mut both = one("a live sample that says nothing", false, format!("s/{name}"), value);
            both.push(entry);
            both
        }
        8 => one("retired, of a later release", true, free, retired(r#","v":2"#, "new")),
        _ => one(
            "a plan of a later release",
            true,
            free,
            retired("", r#"{"v":2,"new":1}"#),
        ),
    }
}

async fn write(txn_store: &EtcdStore, records: &[&Bad]) -> Result<()> {
    for chunk in records.chunks(20) {
        let small: usize = chunk.iter().map(|bad| bad.value.len()).sum();
        let parts: Vec<&[&Bad]> = if small < 1_000_000 {
            vec![chunk]
        } else {
            chunk.chunks(1).collect()
        };
        for part in parts {
            let put = |bad: &&Bad| Write::put(format!("{STORE}/{}", bad.key), bad.value.clone());
            let transaction = Transaction {
                writes: part.iter().map(put).collect(),
                ..Transaction::default()
            };
            txn_store.transact(&transaction, WITHIN).await?;
        }
    }
    Ok(())
}

fn good_id(n: usize) -> Result<SampleId> {
    Ok(SampleId::new(format!("good.{n:05}"))?)
}

async fn produce(store: FeatureStore, numbers: Vec<usize>) -> Result<()> {
    for batch in numbers.chunks(AT_ONCE) {
        let mut items = Vec::new();
        for n in batch {
            let spec = TensorSpec::new(TensorName::new("t0")?, DType::Uint8, [SAMPLE as u64])?;
            let memory = store.pool().buffer(SAMPLE, WITHIN).await?;
            tokio::task::block_in_place(|| pattern::fill(&memory, *n as u64))?;
            items.push(PutItem {
                sample: good_id(*n)?,
                tensors: vec![TensorIn::new(spec, memory)],
                publication: publication()?,
            });
        }
        for stored in store.put_many(items, WITHIN).await {
            stored?;
        }
    }
    Ok(())
}

/// Takes until nothing comes any more; returns what had the right bytes.
async fn consume(store: FeatureStore, deadline: Deadline, clock: Arc<SystemClock>) -> Result<Vec<String>> {
    let mut right_ones = Vec::new();
    let mut quiet = 0;
    while quiet < 3 && !deadline.passed(&*clock) {
        let leases = store.lease_next(&trainers()?, AT_ONCE, Duration::from_secs(2)).await?;
        quiet = if leases.is_empty() { quiet + 1 } else { 0 };
        for lease in &leases {
            let sample = lease.reference().sample.to_string();
            let number = sample.strip_prefix("good.").and_then(|n| n.parse::<u64>().ok());
            let number = number.with_context(|| format!("{sample} was delivered"))?;
            let tensors = store.get(lease, Wanted::All, WITHIN).await?;
            if right(&tensors, number)? {
                right_ones.push(sample);
            }
        }
        for answer in store.ack(&leases, WITHIN).await {
            answer?;
        }
    }
    Ok(right_ones)
}

/// The key that a bad record was written under. A sample that a take could not set aside within its time may have been
/// handed back until its group gave up on it: then it was retired by the time that a sweep did.
fn as_written(key: &str) -> String {
    let key = key.strip_prefix(&format!("{STORE}/")).unwrap_or(key);
    let retired = key.strip_prefix("f/").and_then(|rest| rest.split_once('/'));
    match retired {
        Some((name, _)) if name.ends_with('7') => format!("s/{name}"),
        _ => key.to_owned(),
    }
}

async fn in_quarantine(store: &FeatureStore) -> Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    let mut last = None;
    loop {
        let part = store.quarantined(last.as_ref(), 200, WITHIN).await?;
        for record in &part {
            ensure!(keys.insert(as_written(&record.key)), "{} is listed twice", record.key);
        }
        match part.into_iter().next_back() {
            Some(record) => last = Some(record),
            None => return Ok(keys),
        }
    }
}

pub(crate) fn run(quick: bool) -> Result<Report> {
    let (good, bad_ones) = if quick { (1000, 100) } else { (10_000, 1000) };
    let cluster = Cluster::builder()
        .p2p_metadata(true)
        .segment_mib(256)
        .etcd_nodes(1)
        .start()?;
    let mut settings = Settings::new(cluster.endpoints())?;
    settings.store.pool_bytes = 64 << 20;
    settings.store.sweep_limit = 100;
    let engine = settings.engine()?;
    runtime()?.block_on(async move {
        let clock = Arc::new(SystemClock::new());
        let (begun, deadline) = (clock.now(), Deadline::after(&*clock, LONGEST));
        let txn_store = settings.txn_store().await?;
        let bad: Vec<Bad> = (0..bad_ones).flat_map(|n| bad(n, good)).collect();
        let of = |later: bool| bad.iter().filter(move |bad| bad.later == later && !bad.kind.is_empty());
        write(&txn_store, &bad.iter().collect::<Vec<_>>()).await?;
        eprintln!(
            "poison: {} bad records after {:.1?}",
            bad_ones,
            clock.now().since(begun)
        );
        let store = settings.join(engine.clone(), None).await?;
        let producers: Vec<_> = (0..WORKERS)
            .map(|worker| (0..good).filter(|n| n % WORKERS == worker).collect())
            .map(|numbers| tokio::spawn(produce(store.clone(), numbers)))
            .collect();
        let consumers: Vec<_> = (0..WORKERS)
            .map(|_| tokio::spawn(consume(store.clone(), deadline, Arc::clone(&clock))))
            .collect();
        for producer in producers {
            producer.await??;
        }
        eprintln!("poison: {good} good samples put after {:.1?}", clock.now().since(begun));
        let mut delivered = BTreeMap::new();
        for consumer in consumers {
            for sample in consumer.await?? {
                *delivered.entry(sample).or_insert(0) += 1;
            }
        }
        // Whatever came late.
        for sample in consume(store.clone(), deadline, Arc::clone(&clock)).await? {
            *delivered.entry(sample).or_insert(0) += 1;
        }
        ensure!(
            !deadline.passed(&*clock),
            "only {} samples were delivered in {LONGEST:?}",
            delivered.len()
        );
        store.drain(WITHIN).await?;
        let mut swept = store.sweep(WITHIN).await?;
        for _ in 0..20 {
            if swept.freed == 0 && swept.quarantined == 0 {
                break;
            }
            swept = store.sweep(WITHIN).await?;
        }
        let left = engine.usage(WITHIN)?;
        let took = clock.now().since(begun);
        let listed = in_quarantine(&store).await?;
        let expected: BTreeSet<String> = of(false).map(|bad| bad.key.clone()).collect();
        let stayed = stayed(&txn_store, of(true)).await?;
        let health = store.health(WITHIN).await;
        let mut report = Report::new("poison");
        let kinds: BTreeSet<&str> = bad.iter().map(|bad| bad.kind).filter(|kind| !kind.is_empty()).collect();
        report.note(format!(
            "{bad_ones} bad records among {good} samples of 4 KiB in {took:.1?}; kinds: {}",
            kinds.into_iter().collect::<Vec<_>>().join(", ")
        ));
        report.claim(
            "every good sample is delivered once, with the right bytes",
            format!("{} of {good}", delivered.len()),
            delivered.len() == good && delivered.values().all(|times| *times == 1),
        );
        report.claim(
            "nothing is left in the engine",
            format!("{} objects, {} bytes", left.objects, left.dram_used),
            left.objects == 0,
        );
        let (missing, surplus) = (
            expected.difference(&listed).count(),
            listed.difference(&expected).count(),
        );
        report.claim(
            "quarantine lists exactly what cannot be read",
            format!("{} listed, {missing} missing, {surplus} too many", listed.len()),
            missing == 0 && surplus == 0,
        );
        for key in expected
            .difference(&listed)
            .chain(listed.difference(&expected))
            .take(10)
        {
            report.note(format!("unexpected: {key}"));
        }
        report.claim(
            "what a later release wrote is where it was",
            format!("{stayed} of {}", of(true).count()),
            stayed == of(true).count(),
        );
        report.note(format!(
            "counted by the process: {:?}; a move whose reply was lost is listed and not counted",
            health.passed_over
        ));
        report.figure("good", good);
        report.figure("bad", bad_ones);
        report.figure("delivered", delivered.len());
        report.figure("quarantined", listed.len());
        report.figure("later", stayed);
        report.figure("seconds", rounded(took.as_secs_f64()));
        store.close(WITHIN).await?;
        Ok(report)
    })
}

/// How many of these are as they were written.
async fn stayed<'a>(txn_store: &EtcdStore, later: impl Iterator<Item = &'a Bad>) -> Result<usize> {
    let mut stayed = 0;
    for bad in later {
        let read = [Read::Key(format!("{STORE}/{}", bad.key))];
        let snapshot = txn_store.read(&read, WITHIN).await?;
        let found = snapshot.entries.into_iter().flatten().next();
        stayed += usize::from(found.is_some_and(|entry| entry.value == bad.value));
    }
    Ok(stayed)
}
