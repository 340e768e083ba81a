//! Records whose objects are gone.
//!
//! A sample whose objects the engine has lost is declared lost by the process that reads it
//! ([`crate::reclaim::loss`]). After a restart of the master that is too late for samples that nobody reads yet: their
//! consumers find out one by one, each after the grace. The audit walks all live records, probes their objects (a probe
//! has no side effects), and makes the samples that miss one suspects, as a read would. What becomes of a suspect is
//! decided in the one place, with the same evidence: missing at every look for `loss_grace`, with the engine healthy.
//!
//! - A sample that was acknowledged, freed or put anew since its record was read is settled by the verdict: it holds
//!   only for the generation that is live.
//! - There is room for a bounded number of suspects. An audit that waits for the verdicts goes on when there is room
//!   again; any other leaves the rest to the next audit, and says how many.
//! - Suspects are in memory. If the process dies, the next audit begins anew: a verdict is late then, never wrong.
//! - With no holder at all nothing is ever declared lost.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, ObjectKey, Result};
use tensorhold_engine::Presence;
use tensorhold_index::{RecordQuery, SampleRecord, SampleRef, Stage};

use super::{MOST_EXAMPLES, Pace};
use crate::reclaim::Reclaim;
use crate::record::description::Description;
use crate::record::plan::SampleObjects;
use crate::runtime::tasks::Caller;
use crate::store::FeatureStore;

const OPERATION: &str = "features.audit_losses";
/// Records that are read at once.
const PAGE: usize = 1000;

/// How to look for losses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossAudit {
    /// Whether to report only. Default: yes.
    pub read_only: bool,
    /// The most objects that are probed per second; none for no bound. Default: none.
    pub rate: Option<u32>,
    /// Whether to wait for the verdicts, until the deadline. They take `loss_grace`, and a little more. Default: no.
    pub wait: bool,
}

impl Default for LossAudit {
    fn default() -> Self {
        Self {
            read_only: true,
            rate: None,
            wait: false,
        }
    }
}

/// What a loss audit found and did.
#[derive(Clone, Debug, Default)]
pub struct LossReport {
    /// Live samples that were looked at.
    pub samples: u64,
    /// Their objects.
    pub objects: u64,
    /// Samples that miss at least one object now.
    pub missing: u64,
    /// Those of them that are suspected from now on, or were before.
    pub suspected: u64,
    /// Those of them for which there was no room; the next audit takes them.
    pub no_room: u64,
    /// Samples that this process declared lost while the audit ran.
    pub lost: u64,
    /// Records, or descriptions in them, that this release cannot read. They are left alone.
    pub unreadable: u64,
    /// Whether all live samples were looked at and, if it was to wait, no suspect is left.
    pub complete: bool,
    /// Some of the samples that miss an object, each with that object.
    pub examples: Vec<(SampleRef, ObjectKey)>,
}

impl FeatureStore {
    /// Looks for live samples that miss an object, and has them declared lost once their objects were missing for the
    /// loss grace. Needs an engine that can probe.
    ///
    /// # Errors
    /// If the engine or the index does not answer.
    pub async fn audit_losses(&self, options: LossAudit, within: Duration) -> Result<LossReport> {
        self.run_for(OPERATION, move |inner, caller| async move {
            let deadline = inner.deadline(within);
            inner.reclaim.audit_losses(&options, Some(&caller), deadline).await
        })
        .await
    }
}

/// A live sample, and the keys of its objects.
struct Probed {
    sample: SampleRef,
    description: Arc<Description>,
    keys: Vec<ObjectKey>,
}

impl Reclaim {
    /// See [`FeatureStore::audit_losses`].
    pub(crate) async fn audit_losses(
        &self,
        options: &LossAudit,
        caller: Option<&Caller>,
        deadline: Deadline,
    ) -> Result<LossReport> {
        let capabilities = self.runtime.engine.capabilities();
        if !capabilities.probe {
            let message = "this engine cannot be asked for its objects without side effects; name the masters' admin addresses \
                           in the engine's settings";
            return Err(Error::new(ErrorKind::Unsupported, OPERATION, message).with("engine", capabilities.engine));
        }
        let lost_before = self.runtime.count.read().lost;
        let mut report = LossReport::default();
        let mut pace = Pace::new(options.rate, &*self.runtime.clock);
        let (mut place, live) = (None, RecordQuery::of(Stage::Live));
        loop {
            let left = self.runtime.left(deadline);
            let page = self.runtime.index.records(&live, place.as_ref(), PAGE, left).await?;
            report.samples += page.records.len() as u64;
            report.unreadable += page.later as u64;
            let missing = self
                .miss_an_object(page.records, &mut pace, &mut report, deadline)
                .await?;
            for (probed, key) in missing {
                report.missing += 1;
                if report.examples.len() < MOST_EXAMPLES {
                    report.examples.push((probed.sample.clone(), key.clone()));
                }
                if !options.read_only {
                    self.suspect(&probed, &key, options.wait, &mut report, deadline).await;
                }
            }
            place = page.next;
            if place.is_none() {
                report.complete = true;
                break;
            }
            if caller.is_some_and(|caller| !caller.may_wait()) || deadline.passed(&*self.runtime.clock) {
                break;
            }
        }
        if options.wait && !options.read_only && report.suspected > 0 {
            let waits_end = async {
                match caller {
                    Some(caller) => caller.waits_end().await,
                    None => std::future::pending().await,
                }
            };
            report.complete &= tokio::select! {
                none_left = self.losses.none_left(self.runtime.left(deadline)) => none_left,
                () = waits_end => false,
            };
        }
        report.complete &= report.no_room == 0;
        report.lost = self.runtime.count.read().lost - lost_before;
        Ok(report)
    }

    /// Makes a sample a suspect. If there is no room, waits for it or leaves the sample to the next audit.
    async fn suspect(&self, probed: &Probed, key: &ObjectKey, wait: bool, report: &mut LossReport, deadline: Deadline) {
        let losses = &self.losses;
        loop {
            if losses.suspect(&probed.sample, key, &probed.description) {
                tracing::warn!(sample = %probed.sample.sample, %key, "an audit: the engine does not have a committed object now");
                report.suspected += 1;
                return;
            }
            let left = self.runtime.left(deadline);
            if !wait || left.is_zero() || !losses.some_settled(left).await {
                report.no_room += 1;
                return;
            }
        }
    }

    /// The samples that miss an object, each with one that is missing.
    async fn miss_an_object(
        &self,
        samples: Vec<SampleRecord>,
        pace: &mut Pace,
        report: &mut LossReport,
        deadline: Deadline,
    ) -> Result<Vec<(Probed, ObjectKey)>> {
        let mut probed = Vec::with_capacity(samples.len());
        for live in samples {
            match self.to_probe(live) {
                Ok(sample) => probed.push(sample),
                Err(error) => {
                    tracing::debug!(%error, "an audit passes over a sample that cannot be read here");
                    report.unreadable += 1;
                }
            }
        }
        let objects: Vec<(usize, ObjectKey)> = probed
            .iter()
            .enumerate()
            .flat_map(|(at, sample)| sample.keys.iter().map(move |key| (at, key.clone())))
            .collect();
        report.objects += objects.len() as u64;
        let mut missing: Vec<Option<ObjectKey>> = vec![None; probed.len()];
        for batch in objects.chunks(self.runtime.max_batch()) {
            let keys: Vec<ObjectKey> = batch.iter().map(|(_, key)| key.clone()).collect();
            let engine = Arc::clone(&self.runtime.engine);
            let probe = move |within| engine.probe(&keys, within);
            let seen = self.runtime.blocking.run(OPERATION, deadline, probe).await?;
            for ((at, key), seen) in batch.iter().zip(seen) {
                if seen == Presence::Absent {
                    missing[*at].get_or_insert_with(|| key.clone());
                }
            }
            pace.did(batch.len(), &self.runtime, deadline).await;
        }
        let pairs = probed.into_iter().zip(missing);
        Ok(pairs.filter_map(|(sample, key)| Some((sample, key?))).collect())
    }

    fn to_probe(&self, live: SampleRecord) -> Result<Probed> {
        let description = Description::from_bytes(live.description.as_deref().unwrap_or_default())?;
        let keys = description.object_keys(SampleObjects {
            store: &self.runtime.config.store,
            sample: &live.sample,
        })?;
        Ok(Probed {
            sample: live.sample,
            description: Arc::new(description),
            keys,
        })
    }
}
