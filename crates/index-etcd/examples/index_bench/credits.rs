//! The cost of quota when every producer waits for it: 64 producers, and a budget for 16 samples.
//!
//! Beside it, the throughput of 16 producers without quota: with such a budget no more than 16 are at work at a time,
//! so this is the best that could be reached if waiting cost nothing. And 64 producers that know nothing of each other,
//! as if each were its own process: then no quota is handed over in the local queue, and all producers wait in the
//! shared queue.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tensorhold_core::{Clock, Deadline, Nonce, SampleId, SystemClock};
use tensorhold_custody::{GroupName, Publication};
use tensorhold_index::{Commit, Index, Reserve, SampleRef, Session, TxnIndex};
use tensorhold_testkit::Paired;

use crate::ours::{DESCRIPTION, index_of};
use crate::{WITHIN, connect, cpu_us, median, quantile, report_ratio, rounded};

const PRODUCERS: usize = 64;
const BUDGET_FOR: u64 = 16;
const BYTES: u64 = 4 << 20;
const ROUND: Duration = Duration::from_secs(4);
const ROUNDS: usize = 4;
const SIDES: usize = 4;

struct Producer {
    index: Arc<TxnIndex>,
    session: Session,
    made: usize,
}

pub(crate) async fn measure(
    endpoints: &[String],
    clock: &SystemClock,
    etcd: u32,
    report: &mut serde_json::Map<String, serde_json::Value>,
) -> Result<()> {
    let mut sides = [
        producers(endpoints, "free", PRODUCERS, false).await?,
        producers(endpoints, "budgeted", PRODUCERS, true).await?,
        producers(endpoints, "few", usize::try_from(BUDGET_FOR)?, false).await?,
        strangers(endpoints, "apart").await?,
    ];
    let mut rates: [Vec<f64>; SIDES] = Default::default();
    let mut waits: [Vec<f64>; SIDES] = Default::default();
    // Microseconds of processor time per sample: of this process, and of etcd.
    let mut cpu: [[Vec<f64>; 2]; SIDES] = Default::default();
    for round in 0..=ROUNDS {
        // Each order is followed by its reverse.
        let mut order: Vec<usize> = (0..SIDES).map(|turn| (round / 2 + turn) % SIDES).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let (begin, before) = (clock.now(), cpu_us(etcd)?);
            let mut tasks = Vec::new();
            for (number, mut producer) in std::mem::take(&mut sides[side]).into_iter().enumerate() {
                tasks.push(tokio::spawn(async move {
                    let waits = producer.work(number).await?;
                    Ok::<_, anyhow::Error>((producer, waits))
                }));
            }
            let mut samples = 0;
            for task in tasks {
                let (producer, times) = task.await??;
                samples += times.len();
                if round > 0 {
                    waits[side].extend(times);
                }
                sides[side].push(producer);
            }
            let rate = samples as f64 / clock.now().since(begin).as_secs_f64();
            let after = cpu_us(etcd)?;
            if round > 0 {
                rates[side].push(rate);
                for ((spent, after), before) in cpu[side].iter_mut().zip(after).zip(before) {
                    spent.push((after - before) / samples as f64);
                }
            }
        }
    }
    let [of_free, of_budgeted, of_few, of_apart] = [0, 1, 2, 3];
    for (name, ours, theirs) in [
        ("credit_throughput", of_budgeted, of_free),
        ("credit_throughput_of_16", of_budgeted, of_few),
        ("credit_throughput_apart", of_apart, of_free),
    ] {
        let wall = Paired::of(&rates[ours], &rates[theirs]);
        let beside = [0, 1].map(|whose| Paired::of(&cpu[theirs][whose], &cpu[ours][whose]).ratio);
        report_ratio(report, name, wall, beside);
    }
    let [free, budgeted, few, apart] = rates.each_mut().map(|rates| median(rates));
    let [_, waited, _, waited_apart] = waits
        .each_mut()
        .map(|waits| [median(waits), quantile(waits, 1.0)].map(rounded));
    eprintln!("credits: {budgeted:.0} samples/s with, {free:.0} without, {few:.0} by 16 without; waits {waited:?} ms");
    eprintln!("credits: {apart:.0} samples/s by 64 who know nothing of each other; waits {waited_apart:?} ms");
    let fairness = |[typical, longest]: [f64; 2]| rounded(longest / typical);
    for (name, figure) in [
        ("credit_fairness", fairness(waited)),
        ("credit_fairness_apart", fairness(waited_apart)),
        ("credit_samples_per_s", budgeted.round()),
    ] {
        report.insert(name.into(), figure.into());
    }
    report.insert("credit_wait_ms".into(), waited.to_vec().into());
    Ok(())
}

/// Producers of one process.
async fn producers(endpoints: &[String], store: &str, count: usize, budgeted: bool) -> Result<Vec<Producer>> {
    let txn_store = connect(endpoints, "credits").await?;
    if budgeted {
        index_of(Arc::clone(&txn_store), store)?
            .set_budget(BUDGET_FOR * BYTES, WITHIN)
            .await?;
    }
    let index = Arc::new(index_of(txn_store, store)?);
    let mut producers = Vec::new();
    for _ in 0..count {
        producers.push(Producer::on(Arc::clone(&index)).await?);
    }
    Ok(producers)
}

/// Producers with a budget, each with an index of its own. They share a connection all the same.
async fn strangers(endpoints: &[String], store: &str) -> Result<Vec<Producer>> {
    let txn_store = connect(endpoints, "credits").await?;
    let mut producers = producers(endpoints, store, 0, true).await?;
    for _ in 0..PRODUCERS {
        producers.push(Producer::on(Arc::new(index_of(Arc::clone(&txn_store), store)?)).await?);
    }
    Ok(producers)
}

impl Producer {
    async fn on(index: Arc<TxnIndex>) -> Result<Self> {
        let session = index.open_session(WITHIN).await?;
        Ok(Self {
            index,
            session,
            made: 0,
        })
    }

    /// Makes samples and uses them up until the round is over; returns how long each reservation took, in milliseconds.
    async fn work(&mut self, number: usize) -> Result<Vec<f64>> {
        let clock = SystemClock::new();
        let over = Deadline::after(&clock, ROUND);
        let group = GroupName::new("trainers")?;
        let mut waits = Vec::new();
        while !over.passed(&clock) {
            let sample = SampleId::new(format!("{number}/{}", self.made))?;
            self.made += 1;
            let begin = clock.now();
            let wish = Reserve {
                sample: sample.clone(),
                nonce: Nonce::from_u64(1),
                bytes: BYTES,
                plan: String::new(),
                claims: Vec::new(),
            };
            let generation = self.index.reserve(&self.session, &[wish], WITHIN).await.remove(0)?;
            waits.push(clock.now().since(begin).as_secs_f64() * 1e3);
            let sample = SampleRef { sample, generation };
            let publication = Publication {
                groups: vec![group.clone()],
                retain: false,
                max_attempts: 3,
            };
            let commit = Commit {
                sample: sample.clone(),
                becomes: None,
                publication,
                description: DESCRIPTION.to_vec(),
            };
            self.index.commit(&self.session, &[commit], WITHIN).await.remove(0)?;
            let samples = [sample];
            let held = self
                .index
                .lease(&self.session, &group, &samples, 600, WITHIN)
                .await
                .remove(0)?;
            self.index.ack(&self.session, &[held], WITHIN).await.remove(0)?;
            self.index.freed(&self.session, &samples, WITHIN).await.remove(0)?;
        }
        Ok(waits)
    }
}
