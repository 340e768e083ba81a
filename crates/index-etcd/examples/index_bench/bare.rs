//! The baseline: the same reads and transactions, built by hand and sent with `etcd-client`, without any decisions.
//!
//! A lease is: a range read of the ready list, which holds the records, and a transaction with one condition and two
//! writes per sample, and one write for the grant list of all of them. An acknowledgement is a transaction with one
//! condition and two writes per sample, and one write for the grant list. Each transaction carries two more
//! conditions and one more write, for the session and its slot, and the lease carries one condition for the clock. A
//! transaction holds as many samples as ours do, and one read of the list shows at most as many samples as ours does.
//! Every sample is read from the list once.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use futures_util::future::try_join_all;

/// The size of a live record with its description, and of a retired one.
const LIVE: [u8; 430] = [b'l'; 430];
const RETIRED: [u8; 380] = [b'r'; 380];
/// The samples in one of our transactions when 64 are taken at a time: two writes each, of 128.
const PER_TRANSACTION: usize = 32;
/// The most samples that one read of the list shows, as in ours.
const MOST_AT_ONCE: usize = 256;
/// Each worker has shards of the list to itself.
const SHARDS: usize = 16;

/// The shard of a sample: as in ours, the samples of one shard are spread over all names. Of any 8,192 in a row, each
/// shard has equally many.
fn shard_of(n: usize) -> usize {
    const STREWN: usize = 2_531;
    (n * STREWN % 8_192) / (8_192 / SHARDS)
}

pub(crate) struct Bare {
    client: Client,
    root: String,
    lease: i64,
    clock: i64,
    made: usize,
    ready: Vec<(usize, i64)>,
}

impl Bare {
    pub(crate) async fn connect(endpoints: &[String], name: &str) -> Result<Self> {
        let mut client = Client::connect(endpoints, None).await?;
        let lease = client.lease_grant(600, None).await?.id();
        let root = format!("/bare/{name}");
        client
            .put(format!("{root}/n"), "", Some(PutOptions::new().with_lease(lease)))
            .await?;
        let clock = client.put(format!("{root}/t"), "1", None).await?;
        let clock = clock.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Self {
            client,
            root,
            lease,
            clock,
            made: 0,
            ready: Vec::new(),
        })
    }

    pub(crate) async fn prepare(&mut self, samples: usize) -> Result<()> {
        for at in (0..samples).step_by(40) {
            let these: Vec<usize> = (self.made + at..self.made + samples.min(at + 40)).collect();
            let mut operations = Vec::new();
            for n in &these {
                operations.push(TxnOp::put(self.record(*n), LIVE, None));
                operations.push(TxnOp::put(self.queue_key(*n), LIVE, None));
            }
            let answer = self.client.txn(Txn::new().and_then(operations)).await?;
            let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            self.ready.extend(these.into_iter().map(|n| (n, revision)));
        }
        self.made += samples;
        Ok(())
    }

    fn record(&self, n: usize) -> String {
        format!("{}/s/sample-{n:09}", self.root)
    }

    fn queue_key(&self, n: usize) -> String {
        format!("{}/q/trainers/{:02x}/{n:016x}/sample-{n:09}", self.root, shard_of(n))
    }

    pub(crate) async fn run(&mut self, workers: usize, batch: usize) -> Result<()> {
        let mut all = std::mem::take(&mut self.ready);
        all.sort_by_key(|(n, _)| (shard_of(*n), *n));
        let mut tasks = Vec::new();
        for worker in 0..workers {
            let mine = |(n, _): &&(usize, i64)| shard_of(*n) % workers == worker;
            let share: Vec<(usize, i64)> = all.iter().filter(mine).copied().collect();
            let mut side = Self {
                client: self.client.clone(),
                root: self.root.clone(),
                ready: Vec::new(),
                ..*self
            };
            let slots = 0..batch.div_ceil(PER_TRANSACTION);
            let mut slots: Vec<Slot> = slots
                .map(|at| Slot {
                    key: format!("{}/o/{worker}-{at}", self.root),
                    version: None,
                })
                .collect();
            tasks.push(tokio::spawn(async move {
                for seen in share.chunks(MOST_AT_ONCE) {
                    side.look(seen).await?;
                    for chunk in seen.chunks(batch) {
                        side.pair(chunk, &mut slots).await?;
                    }
                }
                Ok::<_, anyhow::Error>(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }

    /// Reads as many entries of the list as there are `samples`, with the records in them.
    async fn look(&mut self, samples: &[(usize, i64)]) -> Result<()> {
        let shards: BTreeSet<usize> = samples.iter().map(|(n, _)| shard_of(*n)).collect();
        let each = i64::try_from(samples.len().div_ceil(shards.len().max(1)))?;
        for shard in shards {
            let options = GetOptions::new().with_prefix().with_limit(each);
            let key = format!("{}/q/trainers/{shard:02x}/", self.root);
            let answer = self.client.get(key, Some(options)).await?;
            ensure!(!answer.kvs().is_empty(), "a look showed nothing");
        }
        Ok(())
    }

    /// Takes samples, whose records were written at the revisions given, and acknowledges them. The transactions of a batch
    /// are sent at the same time, as ours are.
    async fn pair(&self, samples: &[(usize, i64)], slots: &mut [Slot]) -> Result<()> {
        let taken = samples
            .chunks(PER_TRANSACTION)
            .zip(slots.iter_mut())
            .map(|(chunk, slot)| {
                let clock = format!("{}/t", self.root);
                let mut conditions = vec![Compare::mod_revision(clock, CompareOp::Equal, self.clock)];
                let mut operations = Vec::new();
                for (n, revision) in chunk {
                    conditions.push(Compare::mod_revision(self.record(*n), CompareOp::Equal, *revision));
                    operations.push(TxnOp::delete(self.queue_key(*n), None));
                    operations.push(TxnOp::put(self.record(*n), LIVE, None));
                }
                operations.push(TxnOp::put(self.note(chunk), vec![b'n'; 32 * chunk.len()], None));
                self.send(conditions, operations, slot)
            });
        let tokens: Vec<i64> = try_join_all(taken).await?;
        let chunks = samples.chunks(PER_TRANSACTION).zip(tokens);
        let acknowledged = chunks.zip(slots).map(|((chunk, token), slot)| {
            let mut conditions = Vec::new();
            let mut operations = Vec::new();
            for (n, _) in chunk {
                conditions.push(Compare::mod_revision(self.record(*n), CompareOp::Equal, token));
                operations.push(TxnOp::delete(self.record(*n), None));
                let retired = format!("{}/f/sample-{n:09}/{n:016x}", self.root);
                operations.push(TxnOp::put(retired, RETIRED, None));
            }
            operations.push(TxnOp::delete(self.note(chunk), None));
            self.send(conditions, operations, slot)
        });
        try_join_all(acknowledged).await?;
        Ok(())
    }

    fn note(&self, samples: &[(usize, i64)]) -> String {
        let number = samples.first().map_or(0, |(n, _)| *n);
        let (holder, until) = (self.lease, 601);
        format!("{}/h/{holder:016x}/{until:016x}/{holder:016x}-{number:x}", self.root)
    }

    async fn send(&self, mut conditions: Vec<Compare>, mut operations: Vec<TxnOp>, slot: &mut Slot) -> Result<i64> {
        if let Some(version) = slot.version {
            conditions.push(Compare::mod_revision(slot.key.as_str(), CompareOp::Equal, version));
        }
        conditions.push(Compare::create_revision(
            format!("{}/n", self.root),
            CompareOp::Greater,
            0,
        ));
        operations.push(TxnOp::put(
            slot.key.as_str(),
            "12345678",
            Some(PutOptions::new().with_lease(self.lease)),
        ));
        let mut client = self.client.clone();
        let answer = client.txn(Txn::new().when(conditions).and_then(operations)).await?;
        ensure!(answer.succeeded(), "a bare transaction did not apply");
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        slot.version = Some(revision);
        Ok(revision)
    }
}

/// The mark of the last transaction of a sender.
struct Slot {
    key: String,
    version: Option<i64>,
}
