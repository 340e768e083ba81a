//! Our side: the index as a consumer uses it.

use std::sync::Arc;

use anyhow::Result;
use tensorhold_core::{Clock, Nonce, SampleId, StoreId, SystemClock, SystemRng};
use tensorhold_custody::{GroupName, Publication};
use tensorhold_index::{Commit, Index, IndexConfig, Reserve, SampleRef, Session, TxnIndex};

use crate::{WITHIN, connect};

/// What a sample's description looks like: the size of a real one.
pub(crate) const DESCRIPTION: [u8; 200] = [b'd'; 200];
/// Long enough not to end during a run.
const TICKS: u64 = 600;

pub(crate) struct Ours {
    index: Arc<TxnIndex>,
    session: Arc<Session>,
    group: GroupName,
    made: usize,
}

pub(crate) fn index_of(txn_store: Arc<tensorhold_index_etcd::EtcdStore>, store: &str) -> Result<TxnIndex> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Ok(TxnIndex::new(
        txn_store,
        &StoreId::new(store)?,
        IndexConfig::default(),
        clock,
        Arc::new(SystemRng),
    ))
}

/// Reserves and commits samples `from..to`.
pub(crate) async fn publish(
    index: &TxnIndex,
    session: &Session,
    group: &GroupName,
    from: usize,
    to: usize,
) -> Result<()> {
    for at in (from..to).step_by(30) {
        let names = (at..to.min(at + 30))
            .map(|n| SampleId::new(format!("sample-{n:09}")))
            .collect::<Result<Vec<_>, _>>()?;
        let wishes: Vec<_> = names
            .iter()
            .map(|sample| Reserve {
                sample: sample.clone(),
                nonce: Nonce::from_u64(7),
                bytes: 4 << 20,
                plan: String::new(),
                claims: Vec::new(),
            })
            .collect();
        let mut commits = Vec::with_capacity(wishes.len());
        for (sample, generation) in names.into_iter().zip(index.reserve(session, &wishes, WITHIN).await) {
            let publication = Publication {
                groups: vec![group.clone()],
                retain: false,
                max_attempts: 1000,
            };
            let sample = SampleRef {
                sample,
                generation: generation?,
            };
            commits.push(Commit {
                becomes: None,
                sample,
                publication,
                description: DESCRIPTION.to_vec(),
            });
        }
        for result in index.commit(session, &commits, WITHIN).await {
            result?;
        }
    }
    Ok(())
}

impl Ours {
    pub(crate) async fn connect(endpoints: &[String], name: &str) -> Result<Self> {
        let index = index_of(connect(endpoints, "ours").await?, name)?;
        let session = Arc::new(index.open_session(WITHIN).await?);
        Ok(Self {
            index: Arc::new(index),
            session,
            group: GroupName::new("trainers")?,
            made: 0,
        })
    }

    pub(crate) async fn prepare(&mut self, samples: usize) -> Result<()> {
        publish(&self.index, &self.session, &self.group, self.made, self.made + samples).await?;
        self.made += samples;
        Ok(())
    }

    /// Leases and acknowledges all samples; returns how many milliseconds each pair of calls took.
    pub(crate) async fn run(&mut self, workers: usize, batch: usize, samples: usize) -> Result<Vec<f64>> {
        let mut tasks = Vec::new();
        for _ in 0..workers {
            let (index, session, group) = (Arc::clone(&self.index), Arc::clone(&self.session), self.group.clone());
            let mut left = samples / workers;
            tasks.push(tokio::spawn(async move {
                let clock = SystemClock::new();
                let mut times = Vec::new();
                while left > 0 {
                    let begin = clock.now();
                    let held = index
                        .lease_next(&session, &group, batch.min(left), TICKS, WITHIN)
                        .await?;
                    for result in index.ack(&session, &held, WITHIN).await {
                        result?;
                    }
                    times.push(clock.now().since(begin).as_secs_f64() * 1e3);
                    left -= held.len();
                }
                Ok::<_, tensorhold_core::Error>(times)
            }));
        }
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await??);
        }
        Ok(times)
    }
}
