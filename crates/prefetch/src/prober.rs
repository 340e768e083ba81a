//! Probes of many callers in few requests.
//!
//! ```text
//! caller ─ keys ─▶ known a moment ago ──────────────────────────────▶ answer
//!                     │ the rest joins the round that is being filled
//!                     ▼
//!                  one caller asks for all of the round, the others wait for it
//! ```
//!
//! While `ASKING` requests are under way, the keys of further callers are collected into one round: the next request.
//! The first caller of it that finds a request free leads it. A round holds as many keys as the engine takes in one
//! batch; a caller that finds it full waits, within its own deadline, for the next one.
//!
//! Invariants:
//! - PB1: an answer was read from the engine after its caller asked, or at most `cache_for` before.
//! - PB2: at most `ASKING` requests are under way.
//! - PB3: a leader that fails, fails alone: the others ask again, each at most once as a leader.
//! - PB4: a write of this process is never hidden by an answer from before it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorhold_core::{Clock, Deadline, Error, ObjectKey, Result, Timestamp};
use tensorhold_engine::{Engine, Presence};

const OPERATION: &str = "prefetch.exists";

/// Requests at a time. The master answers admin requests on four threads; two leave it room for others.
const ASKING: usize = 2;

/// The most answers that are remembered, and for how long: gets that follow are counted by them. Callers are answered from
/// them only for `cache_for`.
const MOST_KNOWN: usize = 1 << 16;
const REMEMBER_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Prober {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    cache_for: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<ObjectKey, (Presence, Timestamp)>,
    order: VecDeque<(Timestamp, ObjectKey)>,
    /// The round that is being filled.
    open: Option<Arc<Round>>,
    asking: usize,
    /// Grows with every write of this process: an answer to a question from before it is not remembered.
    writes: u64,
    requests: u64,
    keys_asked: u64,
}

#[derive(Debug, Default)]
struct Round {
    keys: Mutex<BTreeMap<ObjectKey, Option<Presence>>>,
    ended: Mutex<Option<Ended>>,
}

#[derive(Clone, Copy, Debug)]
enum Ended {
    Answered,
    Failed,
}

/// Requests and keys that went to the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Requests.
    pub requests: u64,
    /// Keys in them.
    pub keys: u64,
}

impl Prober {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, cache_for: Duration) -> Self {
        Self {
            engine,
            clock,
            cache_for,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn counts(&self) -> ProbeCounts {
        let state = self.state.lock();
        ProbeCounts {
            requests: state.requests,
            keys: state.keys_asked,
        }
    }

    /// How a probe of this process has seen an object not long ago.
    pub(crate) fn known(&self, key: &ObjectKey) -> Option<Presence> {
        let state = self.state.lock();
        let (presence, at) = state.known.get(key)?;
        (self.clock.now() < at.after(REMEMBER_FOR)).then_some(*presence)
    }

    /// This process writes or removes these objects.
    pub(crate) fn forget<'a>(&self, keys: impl Iterator<Item = &'a ObjectKey>) {
        let mut state = self.state.lock();
        state.writes += 1;
        if !state.known.is_empty() {
            for key in keys {
                state.known.remove(key);
            }
        }
    }

    /// Where objects are, without side effects.
    pub(crate) fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        let deadline = Deadline::after(&*self.clock, within);
        let most = self.engine.capabilities().max_batch.max(1);
        let mut found = Vec::with_capacity(keys.len());
        for batch in keys.chunks(most) {
            found.extend(self.probe_batch(batch, most, deadline)?);
        }
        Ok(found)
    }

    fn probe_batch(&self, keys: &[ObjectKey], most: usize, deadline: Deadline) -> Result<Vec<Presence>> {
        let mut answers: Vec<Option<Presence>> = vec![None; keys.len()];
        let mut state = self.state.lock();
        if !self.cache_for.is_zero() {
            let now = self.clock.now();
            for (key, answer) in keys.iter().zip(&mut answers) {
                let known = state.known.get(key);
                *answer = known.and_then(|(presence, at)| (now < at.after(self.cache_for)).then_some(*presence));
            }
        }
        while answers.iter().any(Option::is_none) {
            let round = self.enter(&mut state, keys, &answers, most, deadline)?;
            match self.see_through(&mut state, &round, deadline)? {
                Ended::Answered => {
                    let told = round.keys.lock();
                    for (key, answer) in keys.iter().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
                        *answer = told.get(key).copied().flatten();
                    }
                }
                // Its leader has the error; this caller asks for itself.
                Ended::Failed => {}
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Adds the keys that have no answer to the round that is being filled, as soon as it has room for them.
    fn enter(
        &self,
        state: &mut MutexGuard<'_, State>,
        keys: &[ObjectKey],
        answers: &[Option<Presence>],
        most: usize,
        deadline: Deadline,
    ) -> Result<Arc<Round>> {
        let open: Vec<&ObjectKey> = keys
            .iter()
            .zip(answers)
            .filter(|(_, answer)| answer.is_none())
            .map(|(key, _)| key)
            .collect();
        loop {
            let round = Arc::clone(state.open.get_or_insert_default());
            {
                let mut asked = round.keys.lock();
                let new = open.iter().filter(|key| !asked.contains_key(**key)).count();
                if asked.is_empty() || asked.len() + new <= most {
                    asked.extend(open.into_iter().map(|key| (key.clone(), None)));
                    drop(asked);
                    return Ok(round);
                }
            }
            // Its last caller can only take it away if this one does not count as such.
            drop(round);
            self.wait(state, deadline)?;
        }
    }

    /// Leads the round or waits for its leader, until it has ended.
    fn see_through(&self, state: &mut MutexGuard<'_, State>, round: &Arc<Round>, deadline: Deadline) -> Result<Ended> {
        loop {
            if let Some(ended) = *round.ended.lock() {
                return Ok(ended);
            }
            let is_open = state.open.as_ref().is_some_and(|open| Arc::ptr_eq(open, round));
            if is_open && state.asking < ASKING {
                state.open = None;
                // Callers that found the round full may begin another one.
                self.changed.notify_all();
                return self.lead(state, round, deadline);
            }
            if let Err(late) = self.wait(state, deadline) {
                // The last caller of a round that nobody leads takes it away: it would be in the way of all others.
                let is_open = state.open.as_ref().is_some_and(|open| Arc::ptr_eq(open, round));
                if is_open && Arc::strong_count(round) == 2 {
                    state.open = None;
                    self.changed.notify_all();
                }
                return Err(late);
            }
        }
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>, deadline: Deadline) -> Result<()> {
        let left = deadline.remaining(&*self.clock);
        if left.is_zero() {
            return Err(Error::unavailable(
                OPERATION,
                "the deadline passed while other probes were under way; allow more time, or probe less often",
            ));
        }
        self.changed.wait_for(state, left);
        Ok(())
    }

    fn lead(&self, state: &mut MutexGuard<'_, State>, round: &Arc<Round>, deadline: Deadline) -> Result<Ended> {
        let keys: Vec<ObjectKey> = round.keys.lock().keys().cloned().collect();
        let writes = state.writes;
        state.asking += 1;
        state.requests += 1;
        state.keys_asked += keys.len() as u64;
        let asked_at = self.clock.now();
        let answer = MutexGuard::unlocked(state, || {
            // If the engine panics, the round ends all the same.
            let mut ending = Ending {
                prober: self,
                round,
                ended: Ended::Failed,
            };
            let answer = self.engine.probe(&keys, deadline.remaining(&*self.clock));
            let answer = answer.and_then(|found| match found.len() == keys.len() {
                true => Ok(found),
                false => Err(Error::internal(
                    OPERATION,
                    "the engine answered for another number of objects",
                )),
            });
            ending.ended = match &answer {
                Ok(found) => {
                    let mut told = round.keys.lock();
                    for (key, presence) in keys.iter().zip(found) {
                        told.insert(key.clone(), Some(*presence));
                    }
                    Ended::Answered
                }
                Err(_) => Ended::Failed,
            };
            answer
        });
        let found = answer?;
        if state.writes == writes {
            self.remember(state, keys, &found, asked_at);
        }
        Ok(Ended::Answered)
    }

    fn remember(&self, state: &mut State, keys: Vec<ObjectKey>, found: &[Presence], at: Timestamp) {
        let now = self.clock.now();
        while let Some((since, _)) = state.order.front()
            && (state.order.len() > MOST_KNOWN || since.after(REMEMBER_FOR) <= now)
            && let Some((since, key)) = state.order.pop_front()
        {
            if state.known.get(&key).is_some_and(|(_, at)| *at == since) {
                state.known.remove(&key);
            }
        }
        for (key, presence) in keys.into_iter().zip(found) {
            state.order.push_back((at, key.clone()));
            state.known.insert(key, (*presence, at));
        }
    }
}

/// Ends a round, however its leader leaves.
struct Ending<'a> {
    prober: &'a Prober,
    round: &'a Round,
    ended: Ended,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.prober.state.lock();
        state.asking -= 1;
        *self.round.ended.lock() = Some(self.ended);
        drop(state);
        self.prober.changed.notify_all();
    }
}
