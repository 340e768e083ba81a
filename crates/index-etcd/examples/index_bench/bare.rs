//! The other side: the same reads and transactions, made by hand and sent with `etcd-client`, with nothing decided.
//!
//! A lease is: a range of the ready list, a read of records and descriptions and the clock, and a transaction with one
//! condition and three writes per sample. An acknowledgement is a transaction with one condition and three writes per
//! sample. Each transaction carries two conditions and one write more, for the session and its slot, and the lease one
//! condition for the clock. As many samples share a transaction as do in ours.

use anyhow::{Result, ensure};
use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};

/// The size of a live record, and of a retired one.
const LIVE: [u8; 230] = [b'l'; 230];
const RETIRED: [u8; 180] = [b'r'; 180];
/// The most samples in one of our transactions: three writes each, of 128, less what the session needs.
const PER_TRANSACTION: usize = 41;

pub(crate) struct Bare {
    client: Client,
    root: String,
    lease: i64,
    batch: usize,
    made: usize,
    ready: Vec<usize>,
}

impl Bare {
    pub(crate) async fn connect(endpoints: &[String], name: &str, batch: usize) -> Result<Self> {
        let mut client = Client::connect(endpoints, None).await?;
        let lease = client.lease_grant(600, None).await?.id();
        let root = format!("/bare/{name}");
        client
            .put(format!("{root}/n"), "", Some(PutOptions::new().with_lease(lease)))
            .await?;
        client.put(format!("{root}/t"), "1", None).await?;
        Ok(Self {
            client,
            root,
            lease,
            batch,
            made: 0,
            ready: Vec::new(),
        })
    }

    pub(crate) async fn prepare(&mut self, samples: usize) -> Result<()> {
        for at in (0..samples).step_by(40) {
            let mut operations = Vec::new();
            for n in self.made + at..self.made + samples.min(at + 40) {
                operations.push(TxnOp::put(format!("{}/s/sample-{n:09}", self.root), LIVE, None));
                operations.push(TxnOp::put(
                    format!("{}/c/sample-{n:09}", self.root),
                    crate::ours::DESCRIPTION,
                    None,
                ));
                operations.push(TxnOp::put(self.queue_key(n), "", None));
                self.ready.push(n);
            }
            self.client.txn(Txn::new().and_then(operations)).await?;
        }
        self.made += samples;
        Ok(())
    }

    fn queue_key(&self, n: usize) -> String {
        format!("{}/q/trainers/{:02x}/{n:016x}/sample-{n:09}", self.root, n % 32)
    }

    pub(crate) async fn run(&mut self, workers: usize, batch: usize) -> Result<()> {
        let all = std::mem::take(&mut self.ready);
        let mut tasks = Vec::new();
        for worker in 0..workers {
            let share: Vec<usize> = all.iter().copied().skip(worker).step_by(workers).collect();
            let mut side = Self {
                client: self.client.clone(),
                root: self.root.clone(),
                ready: Vec::new(),
                ..*self
            };
            let slot = format!("{}/o/{worker}", self.root);
            tasks.push(tokio::spawn(async move {
                let mut version = None;
                for chunk in share.chunks(batch) {
                    side.pair(chunk, &slot, &mut version).await?;
                }
                Ok::<_, anyhow::Error>(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }

    async fn pair(&mut self, samples: &[usize], slot: &str, version: &mut Option<i64>) -> Result<()> {
        let lane = format!(
            "{}/q/trainers/{:02x}/",
            self.root,
            samples.first().copied().unwrap_or(0) % 32
        );
        let options = GetOptions::new()
            .with_prefix()
            .with_keys_only()
            .with_limit(i64::try_from(self.batch)?);
        self.client.get(lane, Some(options)).await?;
        let mut versions = Vec::new();
        let mut clock = 0;
        for chunk in samples.chunks(63) {
            let mut reads = Vec::new();
            for n in chunk {
                reads.push(TxnOp::get(format!("{}/s/sample-{n:09}", self.root), None));
                reads.push(TxnOp::get(format!("{}/c/sample-{n:09}", self.root), None));
            }
            reads.push(TxnOp::get(format!("{}/t", self.root), None));
            let answer = self.client.txn(Txn::new().and_then(reads)).await?;
            let mut found: Vec<i64> = answer
                .op_responses()
                .iter()
                .filter_map(|response| match response {
                    etcd_client::TxnOpResponse::Get(get) => get.kvs().first().map(etcd_client::KeyValue::mod_revision),
                    _ => None,
                })
                .collect();
            clock = found.pop().unwrap_or(0);
            versions.extend(found.into_iter().step_by(2));
        }
        let mut tokens = Vec::new();
        for (chunk, versions) in samples.chunks(PER_TRANSACTION).zip(versions.chunks(PER_TRANSACTION)) {
            let mut conditions = vec![Compare::mod_revision(
                format!("{}/t", self.root),
                CompareOp::Equal,
                clock,
            )];
            let mut operations = Vec::new();
            for (n, version) in chunk.iter().zip(versions) {
                let record = format!("{}/s/sample-{n:09}", self.root);
                conditions.push(Compare::mod_revision(record.as_str(), CompareOp::Equal, *version));
                operations.push(TxnOp::delete(self.queue_key(*n), None));
                operations.push(TxnOp::put(record, LIVE, None));
                operations.push(TxnOp::put(self.held_key(*n), "", None));
            }
            let token = self.send(conditions, operations, slot, version).await?;
            tokens.extend(std::iter::repeat_n(token, chunk.len()));
        }
        for (chunk, tokens) in samples.chunks(PER_TRANSACTION).zip(tokens.chunks(PER_TRANSACTION)) {
            let mut conditions = Vec::new();
            let mut operations = Vec::new();
            for (n, token) in chunk.iter().zip(tokens) {
                let record = format!("{}/s/sample-{n:09}", self.root);
                conditions.push(Compare::mod_revision(record.as_str(), CompareOp::Equal, *token));
                operations.push(TxnOp::delete(record, None));
                operations.push(TxnOp::put(
                    format!("{}/f/sample-{n:09}/{n:016x}", self.root),
                    RETIRED,
                    None,
                ));
                operations.push(TxnOp::delete(self.held_key(*n), None));
            }
            self.send(conditions, operations, slot, version).await?;
        }
        Ok(())
    }

    fn held_key(&self, n: usize) -> String {
        format!(
            "{}/h/{:016x}/{:016x}/sample-{n:09}/{n:016x}",
            self.root, self.lease, 601
        )
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
