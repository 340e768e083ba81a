//! The other side: the same reads and transactions, made by hand and sent with `etcd-client`, with nothing decided.
//!
//! A lease is: a range of the ready list, which holds the records, and a transaction with one condition and two writes per
//! sample, and one for the note of all of them. An acknowledgement is a transaction with one condition and two writes per
//! sample, and one for the note. Each transaction carries two conditions and one write more, for the session and its slot,
//! and the lease one condition for the clock. As many samples share a transaction as do in ours, and those who come at the
//! same time share a look at the list, as ours do.

use anyhow::{Result, ensure};
use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};

/// The size of a live record with its description, and of a retired one.
const LIVE: [u8; 430] = [b'l'; 430];
const RETIRED: [u8; 380] = [b'r'; 380];
/// The samples in one of our transactions when 64 are taken at a time: two writes each, of 128.
const PER_TRANSACTION: usize = 32;
/// The most that those who come at the same time read at once, as ours do.
const MOST_AT_ONCE: usize = 256;

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
        format!("{}/q/trainers/{:02x}/{n:016x}/sample-{n:09}", self.root, n % 32)
    }

    pub(crate) async fn run(&mut self, workers: usize, batch: usize) -> Result<()> {
        let all = std::mem::take(&mut self.ready);
        let mut tasks = Vec::new();
        for worker in 0..workers {
            let share: Vec<(usize, i64)> = all.iter().copied().skip(worker).step_by(workers).collect();
            let mut side = Self {
                client: self.client.clone(),
                root: self.root.clone(),
                ready: Vec::new(),
                ..*self
            };
            let slot = format!("{}/o/{worker}", self.root);
            // One look serves as many workers as it has samples for.
            let together = (MOST_AT_ONCE / batch).clamp(1, workers);
            tasks.push(tokio::spawn(async move {
                let mut version = None;
                for (turn, chunk) in share.chunks(batch).enumerate() {
                    let looks = (turn + worker) % together == 0;
                    side.pair(chunk, looks.then_some(together * batch), &slot, &mut version)
                        .await?;
                }
                Ok::<_, anyhow::Error>(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }

    /// Takes samples, whose records were written at the revisions given, and acknowledges them.
    async fn pair(
        &mut self,
        samples: &[(usize, i64)],
        look: Option<usize>,
        slot: &str,
        version: &mut Option<i64>,
    ) -> Result<()> {
        if let Some(limit) = look {
            let lane = samples.first().map_or(0, |(n, _)| n % 32);
            let options = GetOptions::new().with_prefix().with_limit(i64::try_from(limit)?);
            self.client
                .get(format!("{}/q/trainers/{lane:02x}/", self.root), Some(options))
                .await?;
        }
        let mut tokens = Vec::new();
        for chunk in samples.chunks(PER_TRANSACTION) {
            let clock = format!("{}/t", self.root);
            let mut conditions = vec![Compare::mod_revision(clock, CompareOp::Equal, self.clock)];
            let mut operations = Vec::new();
            for (n, revision) in chunk {
                conditions.push(Compare::mod_revision(self.record(*n), CompareOp::Equal, *revision));
                operations.push(TxnOp::delete(self.queue_key(*n), None));
                operations.push(TxnOp::put(self.record(*n), LIVE, None));
            }
            operations.push(TxnOp::put(self.note(chunk), vec![b'n'; 32 * chunk.len()], None));
            tokens.push(self.send(conditions, operations, slot, version).await?);
        }
        for (chunk, token) in samples.chunks(PER_TRANSACTION).zip(tokens) {
            let mut conditions = Vec::new();
            let mut operations = Vec::new();
            for (n, _) in chunk {
                conditions.push(Compare::mod_revision(self.record(*n), CompareOp::Equal, token));
                operations.push(TxnOp::delete(self.record(*n), None));
                let retired = format!("{}/f/sample-{n:09}/{n:016x}", self.root);
                operations.push(TxnOp::put(retired, RETIRED, None));
            }
            operations.push(TxnOp::delete(self.note(chunk), None));
            self.send(conditions, operations, slot, version).await?;
        }
        Ok(())
    }

    fn note(&self, samples: &[(usize, i64)]) -> String {
        let number = samples.first().map_or(0, |(n, _)| *n);
        let (holder, until) = (self.lease, 601);
        format!("{}/h/{holder:016x}/{until:016x}/{holder:016x}-{number:x}", self.root)
    }

    async fn send(
        &mut self,
        mut conditions: Vec<Compare>,
        mut operations: Vec<TxnOp>,
        slot: &str,
        version: &mut Option<i64>,
    ) -> Result<i64> {
        if let Some(version) = version {
            conditions.push(Compare::mod_revision(slot, CompareOp::Equal, *version));
        }
        conditions.push(Compare::create_revision(
            format!("{}/n", self.root),
            CompareOp::Greater,
            0,
        ));
        operations.push(TxnOp::put(
            slot,
            "12345678",
            Some(PutOptions::new().with_lease(self.lease)),
        ));
        let answer = self
            .client
            .txn(Txn::new().when(conditions).and_then(operations))
            .await?;
        ensure!(answer.succeeded(), "a bare transaction did not apply");
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        *version = Some(revision);
        Ok(revision)
    }
}
