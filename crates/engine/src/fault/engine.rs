//! The wrapper.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, ObjectKey, Result, Retry};

use super::log::{Effect, InjectedFault, Operation};
use super::memory::alter;
use super::outage::History;
use super::plan::{Draw, FaultKind, FaultPlan, Place};
use crate::Engine;
use crate::batch::check_distinct;
use crate::types::{GetOutcome, RemoveOutcome, Transfer};

/// The most bytes that one torn transfer alters.
const LONGEST_TEAR: u64 = 64;

/// An engine that passes calls on to another one, and breaks them by a [`FaultPlan`].
#[derive(Debug)]
pub struct FaultEngine<E: ?Sized> {
    plan: FaultPlan,
    clock: Arc<dyn Clock>,
    paused: AtomicBool,
    history: Mutex<History>,
    inner: Arc<E>,
}

/// What happens to a call before it reaches the wrapped engine.
enum Verdict {
    /// There is no master; nothing is done.
    NoMaster,
    /// The call goes ahead with this much time.
    Go {
        within: Duration,
        /// The call during which the holder that is down now died.
        lost_holder: Option<u64>,
    },
}

impl<E: Engine + ?Sized> FaultEngine<E> {
    /// Wraps an engine. Delays pass on `clock`.
    pub fn new(inner: Arc<E>, plan: FaultPlan, clock: Arc<dyn Clock>) -> Self {
        Self {
            plan,
            clock,
            paused: AtomicBool::new(false),
            history: Mutex::new(History::default()),
            inner,
        }
    }

    /// The wrapped engine.
    pub fn inner(&self) -> &Arc<E> {
        &self.inner
    }

    /// The plan.
    pub fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    /// Passes every call on unchanged from now on, so that a test can inspect the state at the end.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
    }

    /// Resumes the plan where it stopped.
    pub fn resume(&self) {
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Every fault that took effect, in order.
    pub fn faults(&self) -> Vec<InjectedFault> {
        self.history.lock().log.clone()
    }

    fn record(&self, place: Place, effect: Effect) {
        self.history.lock().log.push(InjectedFault {
            call: place.call,
            operation: place.operation,
            item: place.item,
            effect,
        });
    }

    /// The place of a new call in the plan, or none if the call is passed on unchanged.
    pub(super) fn begin(&self, operation: Operation, lawful: bool, within: Duration) -> Option<Place> {
        if !lawful || within.is_zero() || self.paused.load(Ordering::SeqCst) {
            return None;
        }
        let mut history = self.history.lock();
        let call = history.calls;
        history.calls += 1;
        drop(history);
        let place = Place {
            call,
            operation,
            item: None,
        };
        Some(place)
    }

    pub(super) fn lawful(&self, objects: usize) -> bool {
        (1..=self.inner.capabilities().max_batch).contains(&objects)
    }

    /// Whether the wrapped engine would refuse a part of this batch if and only if it would refuse all of it.
    pub(super) fn lawful_transfers(&self, batch: &[Transfer]) -> bool {
        let mut engines = batch.iter().flat_map(|t| &t.parts).map(|part| part.region().engine());
        let first = engines.next();
        self.lawful(batch.len())
            && batch.iter().all(|transfer| !transfer.parts.is_empty())
            && engines.all(|engine| Some(engine) == first)
            && check_distinct("engine.fault", batch).is_ok()
    }

    /// Applies the faults that strike the call as a whole, up to the moment when it is passed on.
    fn judge(&self, place: Place, within: Duration) -> Result<Verdict> {
        let strikes = |kind| self.plan.strikes(kind, place);
        let (master_died, holder_died) = (strikes(FaultKind::MasterLoss), strikes(FaultKind::HolderLoss));
        let mut history = self.history.lock();
        let calls = self.plan.master_loss_calls;
        let master_lost = master_died && history.master.begin(place.call, calls);
        let master_down = history.master.pass().is_some();
        let holder_calls = self.plan.holder_loss_calls;
        let holder_lost = holder_died && history.doomed.is_empty() && history.holder.begin(place.call, holder_calls);
        let lost_holder = history.holder.pass();
        drop(history);
        if holder_lost {
            self.record(place, Effect::HolderLost { calls: holder_calls });
        }
        if master_lost {
            self.record(place, Effect::MasterLost { calls });
        }
        if master_down {
            self.record(place, Effect::MasterDown);
            return Ok(Verdict::NoMaster);
        }
        if strikes(FaultKind::LostRequest) {
            self.record(place, Effect::RequestLost);
            return Err(no_answer(place.operation));
        }
        let within = self.delay(place, within)?;
        Ok(Verdict::Go { within, lost_holder })
    }

    fn delay(&self, place: Place, within: Duration) -> Result<Duration> {
        let longest = u64::try_from(self.plan.longest_delay.as_nanos()).unwrap_or(u64::MAX);
        if longest == 0 || !self.plan.strikes(FaultKind::Delay, place) {
            return Ok(within);
        }
        let nanos = self.plan.draw(FaultKind::Delay, place, Draw::HowMuch, longest);
        let delay = Duration::from_nanos(nanos.saturating_add(1));
        self.clock.sleep(delay.min(within));
        let left = within.saturating_sub(delay);
        if left.is_zero() {
            self.record(place, Effect::TooLate(delay));
            return Err(no_answer(place.operation));
        }
        self.record(place, Effect::Delayed(delay));
        Ok(left)
    }

    /// Once the outage is over, removes the objects that are lost with the holder that died.
    fn bury(&self, place: Place, within: Duration) {
        let doomed: Vec<ObjectKey> = {
            let history = self.history.lock();
            if !history.holder.is_over() || history.doomed.is_empty() {
                return;
            }
            history.doomed.iter().cloned().collect()
        };
        let mut gone = 0;
        for keys in doomed.chunks(self.inner.capabilities().max_batch.max(1)) {
            // Objects that could not be removed now are tried again with the next call.
            let Ok(outcomes) = self.inner.remove(keys, within) else {
                continue;
            };
            let mut history = self.history.lock();
            for (key, outcome) in keys.iter().zip(outcomes) {
                if !matches!(outcome, RemoveOutcome::Failed(_)) {
                    history.doomed.remove(key);
                }
                gone += usize::from(matches!(outcome, RemoveOutcome::Removed));
            }
        }
        if gone > 0 {
            self.record(place, Effect::ObjectsGone(gone));
        }
    }

    /// The failures of the objects of a batch that are not passed on; `None` for the others.
    fn sort_out(&self, place: Place, keys: &[&ObjectKey], lost_holder: Option<u64>) -> Vec<Option<Error>> {
        let at = |item| Place {
            item: Some(item),
            ..place
        };
        let on_holder = |key: &ObjectKey| {
            matches!(place.operation, Operation::Put | Operation::Get)
                && lost_holder.is_some_and(|call| self.plan.on_lost_holder(call, key.as_str()))
        };
        let mut out: Vec<Option<Error>> = Vec::with_capacity(keys.len());
        for (item, key) in keys.iter().enumerate() {
            let down = on_holder(key);
            if down {
                self.record(at(item), Effect::HolderDown);
                self.history.lock().doomed.insert((*key).clone());
            }
            out.push(down.then(|| failure(place.operation, "the object's holder does not answer; try again later")));
        }
        let withheld: Vec<usize> = (0..keys.len())
            .filter(|item| out[*item].is_none() && self.plan.strikes(FaultKind::PartialBatch, at(*item)))
            .collect();
        // If no object were passed on, this would be a lost request; a batch of one cannot be partial.
        let passed_on = out.iter().filter(|error| error.is_none()).count();
        let most = if keys.len() > 1 { passed_on.saturating_sub(1) } else { 0 };
        for item in withheld.into_iter().take(most) {
            self.record(at(item), Effect::Withheld);
            let why = "the engine did not get to this object of the batch; try again later";
            out[item] = Some(failure(place.operation, why));
        }
        out
    }

    /// A call with one outcome per object. `pass_on` gets the positions in the batch that are passed on.
    pub(super) fn batch<O>(
        &self,
        place: Place,
        keys: &[&ObjectKey],
        within: Duration,
        failed: impl Fn(Error) -> O,
        pass_on: impl FnOnce(&[usize], Duration) -> Result<Vec<O>>,
    ) -> Result<Vec<O>> {
        self.bury(place, within);
        let (within, lost_holder) = match self.judge(place, within)? {
            Verdict::Go { within, lost_holder } => (within, lost_holder),
            Verdict::NoMaster => {
                return Ok(keys.iter().map(|_| failed(no_master(place.operation))).collect());
            }
        };
        let sorted_out = self.sort_out(place, keys, lost_holder);
        let passed: Vec<usize> = (0..keys.len()).filter(|item| sorted_out[*item].is_none()).collect();
        let outcomes = if passed.is_empty() {
            Vec::new()
        } else {
            pass_on(&passed, within)?
        };
        self.lose_reply(place)?;
        let mut outcomes = outcomes.into_iter();
        let merged = sorted_out.into_iter().map(|out| match out {
            Some(error) => Some(failed(error)),
            None => outcomes.next(),
        });
        // If the wrapped engine returned too few outcomes, so does this: the mistake is not hidden.
        Ok(merged.flatten().collect())
    }

    /// A call that reports a failure as the error of the whole call.
    pub(super) fn whole<O>(
        &self,
        place: Place,
        within: Duration,
        pass_on: impl FnOnce(Duration) -> Result<O>,
    ) -> Result<O> {
        self.bury(place, within);
        match self.judge(place, within)? {
            Verdict::NoMaster => Err(no_master(place.operation)),
            Verdict::Go { within, .. } => {
                let answer = pass_on(within)?;
                self.lose_reply(place)?;
                Ok(answer)
            }
        }
    }

    fn lose_reply(&self, place: Place) -> Result<()> {
        if self.plan.strikes(FaultKind::LostReply, place) {
            self.record(place, Effect::ReplyLost);
            return Err(no_answer(place.operation));
        }
        Ok(())
    }

    /// Short reads and torn bytes.
    pub(super) fn damage(&self, place: Place, transfer: &Transfer, outcome: GetOutcome) -> GetOutcome {
        let total = transfer.bytes();
        if !matches!(outcome, GetOutcome::Loaded) {
            return outcome;
        }
        let draw = |kind, draw, bound| self.plan.draw(kind, place, draw, bound);
        let (effect, at, len, damaged) = if total > 1 && self.plan.strikes(FaultKind::ShortRead, place) {
            let stored = 1 + draw(FaultKind::ShortRead, Draw::HowMuch, total - 1);
            let damaged = GetOutcome::WrongLength { stored };
            (Effect::ReadShort { stored }, stored, total - stored, damaged)
        } else if self.plan.strikes(FaultKind::TornBytes, place) {
            let at = draw(FaultKind::TornBytes, Draw::Where, total);
            let len = 1 + draw(FaultKind::TornBytes, Draw::HowMuch, LONGEST_TEAR.min(total - at));
            (Effect::Torn { at, len }, at, len, GetOutcome::Loaded)
        } else {
            return outcome;
        };
        if let Err(error) = alter(transfer, at, len) {
            return GetOutcome::Failed(error);
        }
        self.record(place, effect);
        damaged
    }
}

fn failure(operation: Operation, message: &str) -> Error {
    let error = Error::unavailable(operation.dotted(), message);
    if operation.changes_something() {
        error.with_retry(Retry::Ambiguous)
    } else {
        error
    }
}

fn no_answer(operation: Operation) -> Error {
    failure(
        operation,
        "no answer came before the deadline; the call may or may not have taken effect",
    )
}

fn no_master(operation: Operation) -> Error {
    failure(
        operation,
        "the engine's master does not answer; try again when it is back",
    )
}
