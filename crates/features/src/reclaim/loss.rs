//! Loss is a verdict with evidence: a sample is declared lost when one of its objects was missing at every look during
//! a whole grace period, while the engine was healthy.
//!
//! ```text
//!    a get under a lease that holds, or an audit, meets a miss    missing at every look for `loss_grace`
//! (trusted) ────────────────────────────────────────▶ Suspected ────────────────────────────────────────▶ Lost: retired
//!     ▲                                               │  ▲   │                                              │
//!     └───────────── a look sees the object ──────────┘  └───┘ the grace begins anew: the engine does not   │ its objects are
//!                                                              answer, has no holder, was restarted, or     │ removed, and once
//!                                                              the object is being written                  ▼ more before it is freed
//! ```
//!
//! Why not at the first miss: after its restart a master knows nothing. Holders register again a while later and bring
//! back the objects they have on SSD. A miss in between says nothing about the bytes.
//!
//! - Meanwhile gets fail with `Unavailable` (fact `reason=missing`). Each asks the engine again, so the first one after
//!   the object has come back succeeds. Leases stay as they are.
//! - A look is a probe without side effects where the engine has one; otherwise a get into a few bytes of memory, which
//!   tells a miss from everything else. One task of the store makes all looks, a tenth of the grace apart but at most 2
//!   s, for all suspects in a few calls.
//! - Suspicions are kept in the memory of the process that met the miss. If it dies, the next reader that meets the
//!   miss starts the grace anew: a verdict is late then, never wrong. There is room for [`MOST_SUSPECTS`]. A get that
//!   finds none still fails, and a later get starts the grace.
//! - The verdict retires the sample (`Reason::Lost`), on condition that this generation is live. The index keeps the
//!   record, and with it the quota, for `lost_ticks`. Then the objects are removed a second time, in case a late holder
//!   has brought them back, and the record is deleted. An object that comes back after that is named by no record.
//! - With no holder at all nothing is ever declared lost: that state cannot be told from a cluster that is being
//!   started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, ErrorKind, ObjectKey, Result, SampleId, Timestamp};
use tensorhold_custody::Reason;
use tensorhold_engine::{EngineExt, GetOutcome, Presence, Region, Transfer};
use tensorhold_index::SampleRef;
use tokio::sync::{Notify, watch};

use super::Reclaim;
use crate::record::description::Description;

const OPERATION: &str = "features.get";
/// The most samples that are suspected at a time, and the most that are remembered as lost. It bounds memory.
pub(crate) const MOST_SUSPECTS: usize = 16_384;
/// The fewest looks that a verdict needs.
const FEWEST_LOOKS: u32 = 3;
/// The longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long the task sleeps while nothing is suspected. A new suspicion wakes it.
const IDLE: Duration = Duration::from_secs(60);
/// The length of the memory for a get that only asks whether an object exists.
const A_FEW_BYTES: usize = 64;

#[derive(Debug)]
struct Suspect {
    /// The object that was missing.
    key: ObjectKey,
    description: Arc<Description>,
    /// Since when it has been missing at every look.
    since: Timestamp,
    looks: u32,
}

/// What one look saw of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    There,
    Missing,
    /// It is being written, or the engine could not say.
    Unclear,
}

/// What the engine reports of itself; evidence counts only while this stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    restarts: u64,
}

/// The samples that are suspected of being lost, and those that were found lost.
#[derive(Debug)]
pub(crate) struct Losses {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    wake: Notify,
    /// After each look.
    looked: Notify,
}

#[derive(Debug, Default)]
struct State {
    suspects: BTreeMap<SampleRef, Suspect>,
    /// When each was found lost.
    lost: BTreeMap<SampleRef, Timestamp>,
    standing: Option<Standing>,
}

impl Losses {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            wake: Notify::new(),
            looked: Notify::new(),
        }
    }

    /// Suspects a sample, unless it is suspected already. False if there is no room for another.
    pub(crate) fn suspect(&self, sample: &SampleRef, key: &ObjectKey, description: &Arc<Description>) -> bool {
        let mut state = self.state.lock();
        if state.suspects.contains_key(sample) {
            return true;
        }
        if state.suspects.len() >= MOST_SUSPECTS {
            return false;
        }
        let first = state.suspects.is_empty();
        if first {
            // What was seen of the engine before says nothing about the time in between.
            state.standing = None;
        }
        let suspect = Suspect {
            key: key.clone(),
            description: Arc::clone(description),
            since: self.clock.now(),
            looks: 0,
        };
        state.suspects.insert(sample.clone(), suspect);
        drop(state);
        if first {
            self.wake.notify_one();
        }
        true
    }

    /// Waits until fewer samples are suspected than now, or nothing is. False if the time was over first.
    pub(crate) async fn some_settled(&self, within: Duration) -> bool {
        let before = self.suspected();
        self.until(within, |suspected| suspected < before || suspected == 0)
            .await
    }

    /// Waits until no sample is suspected. False if the time was over first.
    pub(crate) async fn none_left(&self, within: Duration) -> bool {
        self.until(within, |suspected| suspected == 0).await
    }

    async fn until(&self, within: Duration, is_so: impl Fn(usize) -> bool) -> bool {
        let waiting = async {
            loop {
                let mut looked = std::pin::pin!(self.looked.notified());
                looked.as_mut().enable();
                if is_so(self.suspected()) {
                    return;
                }
                looked.await;
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }

    /// How many samples are suspected.
    pub(crate) fn suspected(&self) -> usize {
        self.state.lock().suspects.len()
    }

    fn keys(&self) -> Vec<(SampleRef, ObjectKey)> {
        let state = self.state.lock();
        let suspects = state.suspects.iter();
        suspects
            .map(|(sample, suspect)| (sample.clone(), suspect.key.clone()))
            .collect()
    }

    /// Discards all evidence so far.
    fn begin_anew(&self) {
        let now = self.clock.now();
        for suspect in self.state.lock().suspects.values_mut() {
            (suspect.since, suspect.looks) = (now, 0);
        }
    }

    /// Records the engine's standing. False if earlier evidence does not count any more.
    fn stands(&self, standing: Standing) -> bool {
        let before = self.state.lock().standing.replace(standing);
        before.is_none_or(|before| before == standing)
    }

    fn saw(&self, sample: &SampleRef, seen: Seen) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        match (seen, state.suspects.get_mut(sample)) {
            (Seen::There, _) => {
                state.suspects.remove(sample);
                // It could not be retired in time, and is back.
                state.lost.remove(sample);
            }
            (Seen::Missing, Some(suspect)) => suspect.looks = suspect.looks.saturating_add(1),
            (Seen::Unclear, Some(suspect)) => (suspect.since, suspect.looks) = (now, 0),
            (Seen::Missing | Seen::Unclear, None) => {}
        }
    }

    /// The samples that were missing for the whole grace, each with its missing object and its description.
    fn due(&self, grace: Duration) -> Vec<(SampleRef, ObjectKey, Arc<Description>)> {
        let now = self.clock.now();
        let state = self.state.lock();
        let due = state
            .suspects
            .iter()
            .filter(|(_, suspect)| suspect.looks >= FEWEST_LOOKS && now.since(suspect.since) >= grace);
        due.map(|(sample, suspect)| (sample.clone(), suspect.key.clone(), Arc::clone(&suspect.description)))
            .collect()
    }

    /// The evidence is complete. Recorded before the samples are retired: a get whose lease ends by that must know why.
    fn found_lost(&self, samples: &[SampleRef]) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let room = MOST_SUSPECTS.saturating_sub(state.lost.len());
        state
            .lost
            .extend(samples.iter().take(room).map(|sample| (sample.clone(), now)));
    }

    /// The sample is no longer suspected: it is lost, or was not live.
    fn settled(&self, sample: &SampleRef, lost: bool) {
        let mut state = self.state.lock();
        state.suspects.remove(sample);
        if !lost {
            state.lost.remove(sample);
        }
    }

    fn forget_lost(&self, after: Duration) {
        let now = self.clock.now();
        self.state.lock().lost.retain(|_, at| now.since(*at) < after);
    }

    /// Whether this process has recently found the sample lost.
    fn was_lost(&self, sample: &SampleRef) -> bool {
        self.state.lock().lost.contains_key(sample)
    }

    /// The latest generation of a sample that this process has found lost.
    pub(crate) fn last_lost(&self, sample: &SampleId) -> Option<SampleRef> {
        let state = self.state.lock();
        let lost = state.lost.keys().filter(|lost| lost.sample == *sample).max();
        lost.cloned()
    }
}

/// Looks at the suspects until it is told to stop.
pub(crate) async fn watch(reclaim: Arc<Reclaim>, mut stop: watch::Receiver<bool>) {
    let pause = (reclaim.runtime.config.loss_grace / 10).clamp(Duration::from_millis(10), LONGEST_PAUSE);
    let mut small = None;
    while !*stop.borrow() {
        let idle = reclaim.losses.suspected() == 0;
        tokio::select! {
            _ = stop.changed() => return,
            () = reclaim.losses.wake.notified() => {}
            () = tokio::time::sleep(if idle { IDLE } else { pause }) => {
                reclaim.look_for_losses(&mut small).await;
                reclaim.losses.looked.notify_waiters();
            }
        }
    }
}

impl Reclaim {
    /// A get under a lease that holds met a miss.
    pub(crate) fn missed(&self, reference: &SampleRef, description: &Arc<Description>, key: &ObjectKey) -> Error {
        tracing::warn!(sample = %reference.sample, %key, "the engine does not have a committed object now");
        // Without room, a later get starts the grace.
        let _has_room: bool = self.losses.suspect(reference, key, description);
        Error::unavailable(
            OPERATION,
            "the engine does not have the sample's bytes now. They come back if a holder that has them registers again; \
             if none does before the loss grace ends, the sample is lost. Try again",
        )
        .with("reason", "missing")
        .with("sample", &reference.sample)
        .with("generation", reference.generation)
        .with("key", key)
        .with("loss_grace_s", self.runtime.config.loss_grace.as_secs_f64())
    }

    /// The error of a get whose sample is no longer there. If the sample was found lost here, the error says so.
    pub(crate) fn gone(&self, reference: &SampleRef, error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced) || !self.losses.was_lost(reference) {
            return error;
        }
        Error::new(
            ErrorKind::NotFound,
            OPERATION,
            "the sample's bytes are gone from the engine (a holder died, or the cluster was restarted); put it again",
        )
        .with("reason", "lost")
        .with("sample", &reference.sample)
        .with("generation", reference.generation)
    }

    /// One look at all suspects, and the verdicts that follow.
    async fn look_for_losses(&self, small: &mut Option<Region>) {
        let grace = self.runtime.config.loss_grace;
        self.losses
            .forget_lost(grace.saturating_mul(8).max(Duration::from_secs(60)));
        let suspects = self.losses.keys();
        if suspects.is_empty() {
            return;
        }
        let well = |standing: &Result<Standing>| match standing {
            Ok(standing) => self.losses.stands(*standing),
            Err(error) => {
                tracing::debug!(%error, "the engine cannot say what it has; nothing is called lost meanwhile");
                false
            }
        };
        if !well(&self.standing().await) {
            self.losses.begin_anew();
        }
        for batch in suspects.chunks(self.runtime.max_batch()) {
            let keys: Vec<ObjectKey> = batch.iter().map(|(_, key)| key.clone()).collect();
            match self.look_at(keys, small).await {
                Ok(seen) => {
                    for ((sample, _), seen) in batch.iter().zip(seen) {
                        self.losses.saw(sample, seen);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a look for lost samples failed; the grace begins anew");
                    self.losses.begin_anew();
                    return;
                }
            }
        }
        let due = self.losses.due(grace);
        if due.is_empty() {
            return;
        }
        // The engine may have been restarted while it was asked.
        if well(&self.standing().await) {
            self.call_lost(&due).await;
        } else {
            self.losses.begin_anew();
        }
    }

    /// The engine's standing; an error if it cannot report on its objects now.
    async fn standing(&self) -> Result<Standing> {
        if !self.runtime.engine.capabilities().probe {
            return Ok(Standing { restarts: 0 });
        }
        let engine = Arc::clone(&self.runtime.engine);
        let deadline = self.runtime.own_deadline();
        let usage = self
            .runtime
            .blocking
            .run(OPERATION, deadline, move |within| engine.usage(within))
            .await?;
        if usage.holders == 0 {
            return Err(Error::unavailable(OPERATION, "the engine has no holder now; start one"));
        }
        Ok(Standing {
            restarts: usage.restarts,
        })
    }

    async fn look_at(&self, keys: Vec<ObjectKey>, small: &mut Option<Region>) -> Result<Vec<Seen>> {
        let engine = Arc::clone(&self.runtime.engine);
        let deadline = self.runtime.own_deadline();
        if self.runtime.engine.capabilities().probe {
            let call = move |within| engine.probe(&keys, within);
            let found = self.runtime.blocking.run(OPERATION, deadline, call).await?;
            return Ok(found.into_iter().map(Seen::of_presence).collect());
        }
        let memory = small.take();
        let call = move |within| {
            let memory = match memory {
                Some(memory) => memory,
                None => engine.allocate(A_FEW_BYTES, within)?,
            };
            let wanted: Vec<Transfer> = keys.into_iter().map(|key| Transfer::new(key, memory.whole())).collect();
            Ok((engine.get(&wanted, within)?, memory))
        };
        let (outcomes, memory) = self.runtime.blocking.run(OPERATION, deadline, call).await?;
        *small = Some(memory);
        Ok(outcomes.iter().map(Seen::of_get).collect())
    }

    /// Delivers the verdicts: retires the lost samples.
    async fn call_lost(&self, due: &[(SampleRef, ObjectKey, Arc<Description>)]) {
        let deadline = self.runtime.own_deadline();
        let session = match self.runtime.sessions.current(OPERATION, deadline).await {
            Ok(session) => session,
            Err(error) => return tracing::warn!(%error, "lost samples are not retired yet; the next look tries again"),
        };
        let samples: Vec<SampleRef> = due.iter().map(|(sample, ..)| sample.clone()).collect();
        self.losses.found_lost(&samples);
        let left = self.runtime.left(deadline);
        let answers = self.runtime.index.retire(&session, &samples, Reason::Lost, left).await;
        for ((sample, key, description), answer) in due.iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    tracing::error!(sample = %sample.sample, %key, "a committed object stayed gone; its sample is lost");
                    self.runtime.count.lost.one();
                    self.losses.settled(sample, true);
                    self.after_answer(sample, description, answer);
                }
                // Acknowledged, retired or replaced meanwhile.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced) && session.is_alive() => {
                    self.losses.settled(sample, false);
                }
                Err(error) => {
                    self.runtime.sessions.refused(&session, &error);
                    tracing::warn!(%error, "a lost sample is not retired yet; the next look tries again");
                }
            }
        }
    }
}

impl Seen {
    fn of_presence(presence: Presence) -> Self {
        match presence {
            Presence::Present { .. } => Self::There,
            Presence::Absent => Self::Missing,
            Presence::Unfinished => Self::Unclear,
        }
    }

    fn of_get(outcome: &GetOutcome) -> Self {
        match outcome {
            GetOutcome::Miss => Self::Missing,
            GetOutcome::Loaded | GetOutcome::WrongLength { .. } => Self::There,
            // The object has another length than the few bytes that were asked for, so it exists.
            GetOutcome::Failed(error) if error.kind() == ErrorKind::Invalid => Self::There,
            GetOutcome::Unfinished | GetOutcome::Failed(_) => Self::Unclear,
        }
    }
}
