//! Objects of this store that no record owns.
//!
//! They come from SSD, which keeps what was removed until its holder is started again; from a process that was stopped
//! for longer than its session lived, went on writing, and died before it noticed; and from an index that was restored
//! to a state before their records. No sweep finds them, since sweeps begin with records.
//!
//! ```text
//! 1. list        the engine's keys of this store's own form, a part at a time
//! 2. ask         the index: does any record own these generations?        no ──▶ an orphan
//! 3. judge       are there so many that the index must be the wrong one?  yes ─▶ report only
//! 4. ask again, and remove, so many per second
//! ```
//!
//! # Why nobody needs an orphan
//! - OA1: a sample's record is reserved before its first object is put, and no key is put twice. So when an object is
//!   listed, its record is there or has been.
//! - OA2: the index is asked *after* the engine was listed, and all places of a record are read at one moment
//!   ([`tensorhold_index::Index::known`]). So a record that is found nowhere has been, and is gone: its objects were
//!   removed, or its reservation was given up.
//! - OA3: a generation is given out once. A record that is gone never comes back, so no reader and no commit can ever
//!   name the object. A put that is under way still has its reservation, unless its session has ended; then its commit
//!   is refused.
//!
//! A reservation or a live record of another generation does not own the object. A record that this release cannot
//! read, or that is in quarantine, does: it may be repaired.
//!
//! # What is never touched
//! Keys that are not exactly of the form `{store}/{sample}/g{generation}-{nonce}/{tensor}[/{n}]` with this store's
//! name: other stores, KV pages, keys that other programs chose, and adopted objects, which keep their foreign keys.
//!
//! # An index that is not the one
//! All of this holds for the index under which the objects were put. Asked of another etcd, or of one that was put back
//! to an earlier state, every object would be an orphan. So nothing is removed
//! - while the index is fenced: its calls fail;
//! - if an object's generation is larger than any that this index has given out ([`Known::Ahead`]);
//! - if more than a handful of objects, and more than a set share of all, would go.
//!
//! The last two are reported, and `force` is for the operator who knows better. And whatever the operator says, before each
//! removal the records of where the store is are read again, at the index's home and on the store's cluster
//! ([`tensorhold_index::Index::confirm_place`]): if they do not say that it is here, or cannot be read, the audit ends.
//!
//! # What if…
//! - *…the process dies half-way?* The next audit finds the rest.
//! - *…an orphan's put has not ended?* The engine does not remove it before its own timeout. It counts as `unfinished`;
//!   a later audit finds it again, ended or gone.
//! - *…the reply to a removal is lost?* The object is gone or not; it counts as failed, and the next audit looks.
//! - *…an orphan comes back from SSD?* When its holder is started again, since a removal leaves the SSD's copy. So an
//!   audit follows every restart of a holder or master.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::key::escape;
use tensorhold_core::{Deadline, Error, ErrorKind, ObjectKey, Result, SampleKey};
use tensorhold_engine::{Presence, RemoveOutcome};
use tensorhold_index::{Known, SampleRef};

use super::{MOST_EXAMPLES, Pace};
use crate::runtime::tasks::Caller;
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.audit_orphans";
/// Keys that are listed at once. It bounds memory; each part costs the engine its whole list.
const PART: usize = 50_000;
/// Generations that the index is asked for at once.
const ASKED: usize = 1024;
/// Objects that are removed at once. Few, so that the rate is kept and the index is asked shortly before.
const REMOVED: usize = 128;

/// How to look for orphans.
#[derive(Clone, Debug, PartialEq)]
pub struct OrphanAudit {
    /// Whether to report only. Default: yes.
    pub read_only: bool,
    /// The most objects that are removed. Default: 100,000.
    pub limit: usize,
    /// The most objects that are removed per second; none for no bound. Default: 1,000.
    pub rate: Option<u32>,
    /// The largest share of the store's objects that is removed, from 0 to 1. Default: 0.5.
    pub most_share: f64,
    /// So many are removed whatever their share. Default: 16.
    pub handful: u64,
    /// Removes orphans although there are more than `most_share`, or some that this index cannot have made. For an
    /// operator who has made sure that the index is the right one. Default: no.
    pub force: bool,
}

impl Default for OrphanAudit {
    fn default() -> Self {
        Self {
            read_only: true,
            limit: 100_000,
            rate: Some(1000),
            most_share: 0.5,
            handful: 16,
            force: false,
        }
    }
}

/// What an orphan audit found and did.
#[derive(Clone, Debug, Default)]
pub struct OrphanReport {
    /// Objects of this store's own form that the engine listed.
    pub objects: u64,
    /// Keys that begin with the store's name and are not of that form. They are left alone.
    pub other_keys: u64,
    /// Objects that no record owns.
    pub orphans: u64,
    /// Those of them whose generation this index has not given out yet.
    pub ahead: u64,
    /// The bytes of the orphans that were looked at closely (up to `limit`).
    pub bytes: u64,
    /// Orphans that were removed.
    pub removed: u64,
    /// Orphans whose put has not ended; the engine drops them after its own timeout.
    pub unfinished: u64,
    /// Orphans that could not be removed.
    pub failed: u64,
    /// Why nothing was removed, and what to do.
    pub refused: Option<String>,
    /// Why the removal ended early.
    pub stopped: Option<Error>,
    /// Whether everything was looked at and, unless it was to be left, removed or tried.
    pub complete: bool,
    /// Some of the orphans.
    pub examples: Vec<OrphanExample>,
}

/// An orphan, and why it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanExample {
    /// The object.
    pub key: ObjectKey,
    /// Why no record owns it.
    pub reason: OrphanReason,
}

/// Why no record owns an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanReason {
    /// Its generation has no record any more: the sample was freed or lost, or its reservation was given up.
    NoRecord,
    /// This index has not given out its generation yet: it was put under another index, or a later state of this one.
    Ahead,
}

impl OrphanReason {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoRecord => "no record has this generation any more",
            Self::Ahead => "this index has not given out this generation yet",
        }
    }
}

#[derive(Clone, Debug)]
struct Orphan {
    key: ObjectKey,
    sample: SampleRef,
    reason: OrphanReason,
}

impl FeatureStore {
    /// Looks for objects of this store that no record owns, and removes them unless it is told to report only. Objects
    /// of other stores and other writers are never touched. Needs an engine that can list its objects.
    ///
    /// # Errors
    /// If the engine or the index does not answer, or is fenced, before anything was removed. Later errors are in the
    /// report.
    pub async fn audit_orphans(&self, options: OrphanAudit, within: Duration) -> Result<OrphanReport> {
        self.run_for(OPERATION, move |inner, caller| async move {
            let deadline = inner.deadline(within);
            inner.audit_orphans(&options, &caller, deadline).await
        })
        .await
    }
}

impl Inner {
    async fn audit_orphans(&self, options: &OrphanAudit, caller: &Caller, deadline: Deadline) -> Result<OrphanReport> {
        if !(0.0..=1.0).contains(&options.most_share) {
            return Err(
                Error::invalid(OPERATION, "a share is a number from 0 to 1").with("most_share", options.most_share)
            );
        }
        let capabilities = self.runtime.engine.capabilities();
        if !capabilities.list || !capabilities.probe {
            let message =
                "this engine cannot list its objects; name the masters' admin addresses in the engine's settings";
            return Err(Error::new(ErrorKind::Unsupported, OPERATION, message).with("engine", capabilities.engine));
        }
        // An index that was declared meanwhile is known as such after the next call.
        self.runtime.index.tick(self.runtime.left(deadline)).await?;
        let cuts = self.one_history(None)?;
        let mut report = OrphanReport::default();
        let found = self.find_orphans(options.limit, caller, &mut report, deadline).await?;
        let orphans = self.look_closely(found, &mut report, deadline).await?;
        for orphan in orphans.iter().take(MOST_EXAMPLES) {
            report.examples.push(OrphanExample {
                key: orphan.key.clone(),
                reason: orphan.reason,
            });
        }
        report.complete = report.orphans <= options.limit as u64;
        report.refused = refusal(options, &report);
        if options.read_only || orphans.is_empty() {
            return Ok(report);
        }
        if let Some(refused) = &report.refused {
            tracing::warn!(store = %self.runtime.config.store, orphans = report.orphans, refused, "orphans are left alone");
            return Ok(report);
        }
        let mut pace = Pace::new(options.rate, &*self.runtime.clock);
        for batch in orphans.chunks(REMOVED.min(self.runtime.max_batch())) {
            if !caller.may_wait() || deadline.passed(&*self.runtime.clock) {
                report.complete = false;
                break;
            }
            if let Err(error) = self
                .remove_orphans(batch, options.force, cuts, &mut report, deadline)
                .await
            {
                tracing::warn!(%error, "an audit ended early; the next one goes on");
                report.stopped = Some(error);
                report.complete = false;
                break;
            }
            pace.did(batch.len(), &self.runtime, deadline).await;
        }
        Ok(report)
    }

    /// Refuses an index that was restored or replaced, now or since there were so many cuts. Returns how many there were.
    fn one_history(&self, cuts: Option<u64>) -> Result<u64> {
        let history = self.runtime.index.history();
        let changed = cuts.is_some_and(|cuts| cuts != history.cuts);
        if history.refuses.is_none() && !changed {
            return Ok(history.cuts);
        }
        let why = history.refuses.unwrap_or_default();
        let message = "the index was restored or replaced; what it does not know says nothing. Nothing is removed";
        Err(Error::new(ErrorKind::Fenced, OPERATION, message).with("index", why))
    }

    /// Steps 1 and 2. Returns up to `limit` orphans.
    async fn find_orphans(
        &self,
        limit: usize,
        caller: &Caller,
        report: &mut OrphanReport,
        deadline: Deadline,
    ) -> Result<Vec<Orphan>> {
        let store = &self.runtime.config.store;
        let prefix = format!("{}/", escape(store.as_str()));
        let (mut orphans, mut place) = (Vec::new(), None);
        loop {
            let (engine, prefix, from) = (Arc::clone(&self.runtime.engine), prefix.clone(), place.take());
            let list = move |within| engine.list(&prefix, from.as_ref(), PART, within);
            let part = self.runtime.blocking.run(OPERATION, deadline, list).await?;
            place = part.keys.last().cloned().filter(|_| part.more);
            let mut objects = Vec::with_capacity(part.keys.len());
            for key in part.keys {
                match SampleKey::of_object(&key).filter(|parts| parts.store == *store) {
                    Some(parts) => objects.push((
                        key,
                        SampleRef {
                            sample: parts.sample,
                            generation: parts.generation,
                        },
                    )),
                    None => report.other_keys += 1,
                }
            }
            report.objects += objects.len() as u64;
            // The keys are in order, so those of one sample follow each other.
            let mut samples: Vec<SampleRef> = objects.iter().map(|(_, sample)| sample.clone()).collect();
            samples.dedup();
            let mut unknown = Vec::new();
            for asked in samples.chunks(ASKED) {
                if !caller.may_wait() {
                    return Err(caller.ended(OPERATION, "the caller has left"));
                }
                let known = self.runtime.index.known(asked, self.runtime.left(deadline)).await?;
                unknown.extend(asked.iter().cloned().zip(known).filter_map(|(sample, known)| {
                    let reason = match known {
                        Known::Yes => return None,
                        Known::No => OrphanReason::NoRecord,
                        Known::Ahead => OrphanReason::Ahead,
                    };
                    Some((sample, reason))
                }));
            }
            // Both are in the order of the keys.
            let mut unknown = unknown.into_iter().peekable();
            let mut at = None;
            for (key, sample) in objects {
                if unknown.peek().is_some_and(|(next, _)| *next == sample) {
                    at = unknown.next();
                }
                let Some(reason) = at
                    .as_ref()
                    .filter(|(known, _)| *known == sample)
                    .map(|(_, reason)| *reason)
                else {
                    continue;
                };
                report.orphans += 1;
                report.ahead += u64::from(reason == OrphanReason::Ahead);
                if orphans.len() < limit {
                    orphans.push(Orphan { key, sample, reason });
                }
            }
            if place.is_none() {
                return Ok(orphans);
            }
        }
    }

    /// Counts the orphans' bytes. Those that are gone by now, or that another tenant's objects are, are no orphans.
    async fn look_closely(
        &self,
        found: Vec<Orphan>,
        report: &mut OrphanReport,
        deadline: Deadline,
    ) -> Result<Vec<Orphan>> {
        let mut orphans = Vec::with_capacity(found.len());
        for batch in found.chunks(self.runtime.max_batch()) {
            let keys: Vec<ObjectKey> = batch.iter().map(|orphan| orphan.key.clone()).collect();
            let engine = Arc::clone(&self.runtime.engine);
            let probe = move |within| engine.probe(&keys, within);
            let seen = self.runtime.blocking.run(OPERATION, deadline, probe).await?;
            for (orphan, seen) in batch.iter().zip(seen) {
                match seen {
                    Presence::Absent => {
                        report.orphans -= 1;
                        report.ahead -= u64::from(orphan.reason == OrphanReason::Ahead);
                        continue;
                    }
                    Presence::Unfinished => {}
                    Presence::Present { bytes, .. } => report.bytes = report.bytes.saturating_add(bytes),
                }
                orphans.push(orphan.clone());
            }
        }
        Ok(orphans)
    }

    /// Step 4, for a few orphans.
    async fn remove_orphans(
        &self,
        batch: &[Orphan],
        force: bool,
        cuts: u64,
        report: &mut OrphanReport,
        deadline: Deadline,
    ) -> Result<()> {
        self.one_history(Some(cuts))?;
        // Right before each removal: what this index does not know says nothing if the store is elsewhere.
        self.runtime.index.confirm_place(self.runtime.left(deadline)).await?;
        let samples: Vec<SampleRef> = batch.iter().map(|orphan| orphan.sample.clone()).collect();
        let known = self.runtime.index.known(&samples, self.runtime.left(deadline)).await?;
        let mut orphans = Vec::with_capacity(batch.len());
        for (orphan, known) in batch.iter().zip(known) {
            match known {
                Known::No => orphans.push(orphan),
                Known::Ahead if force => orphans.push(orphan),
                // An operator has put its record back from quarantine, or the index went back meanwhile.
                Known::Yes | Known::Ahead => report.orphans -= 1,
            }
        }
        let keys: Vec<ObjectKey> = orphans.iter().map(|orphan| orphan.key.clone()).collect();
        let engine = Arc::clone(&self.runtime.engine);
        let remove = move |within| engine.remove(&keys, within);
        let outcomes = self.runtime.blocking.run(OPERATION, deadline, remove).await?;
        for (orphan, outcome) in orphans.into_iter().zip(outcomes) {
            let (key, reason) = (&orphan.key, orphan.reason.as_str());
            match outcome {
                // Absent: another process was faster.
                RemoveOutcome::Removed | RemoveOutcome::Absent => {
                    tracing::info!(%key, reason, "an object without an owner was removed");
                    report.removed += 1;
                }
                RemoveOutcome::Unfinished => report.unfinished += 1,
                RemoveOutcome::Failed(error) => {
                    tracing::warn!(%key, reason, %error, "an object without an owner stays; the next audit tries again");
                    report.failed += 1;
                }
            }
        }
        Ok(())
    }
}

/// Why orphans are left alone, if they are.
fn refusal(options: &OrphanAudit, report: &OrphanReport) -> Option<String> {
    if options.force || report.orphans == 0 {
        return None;
    }
    let check = "check that this is the index under which the objects were put; if it is, audit again with `force`";
    if report.ahead > 0 {
        return Some(format!(
            "{} objects were put under another index, or under a later state of this one: {check}",
            report.ahead
        ));
    }
    let share = report.orphans as f64 / report.objects.max(1) as f64;
    (report.orphans > options.handful && share > options.most_share).then(|| {
        format!(
            "{} of {} objects have no record, more than the share of {}: {check}",
            report.orphans, report.objects, options.most_share
        )
    })
}
