//! Reading objects: one engine call at a time, with checks that run while the next bytes move.
//!
//! ```text
//! calls    ── get 1 ──┬── get 2 ──┬── get 3 ──┐
//! checks              └ check 1 ┐ └ check 2 ┐ └ check 3 ┐        on as many threads as `streams` says
//!                                             └ all bytes are there: ask whether the lease still holds
//! ```
//! A call brings up to 256 MiB, which is all of most samples. More calls at once would not help: an engine already
//! moves the objects of one call in parallel, and each call that waits for its bytes occupies a core. Small calls are
//! checked by the thread that made them; handing them over would take longer.
//!
//! In a sealed store objects arrive in a stage, and the check is that they decrypt (module `sealed`). Objects of
//! tensors in memory that the engine does not know (module `get_plan`) arrive in a stage too, and are checked on their
//! way out of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Digest, Error, ErrorKind, ObjectKey};
use tensorhold_engine::{Engine, GetOutcome, Span, Transfer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::checksum::{verify, verify_copied};
use super::{Io, split, split_shrinking};
use crate::io::sealed::{Scratch, SealedRun};
use crate::memory::device::{Copying, DevicePart, Direction, ObjectMemory};
use crate::memory::pool::BufferPool;
use crate::memory::spans::part;
use crate::seal::TensorOpener;

const OPERATION: &str = "features.get";
/// The most bytes of one call that has more than one object.
const UNIT_BYTES: u64 = 256 << 20;
/// The same for objects that arrive in a stage. Smaller, because a get has two stages at a time.
const STAGED_UNIT_BYTES: u64 = 64 << 20;
/// Calls of up to so many bytes are checked by the thread that made them: handing them over would take longer.
const CHECKED_AT_ONCE: u64 = 8 << 20;

/// An object to be read.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) key: ObjectKey,
    /// Where its part of a tensor goes.
    pub(crate) memory: ObjectMemory,
    pub(crate) check: Check,
    /// Whether it arrives in a stage although it is plain.
    pub(crate) staged: bool,
}

/// How an object is checked after it has arrived, besides its length.
#[derive(Debug)]
pub(crate) enum Check {
    /// Not at all: it was put without a checksum.
    Nothing,
    /// It has this checksum.
    Digest(Digest),
    /// It arrives in a stage, and must decrypt.
    Seal(SealedRun<TensorOpener>),
}

/// Why bytes were not read.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There is no such object.
    Missing(ObjectKey),
    /// The object, or its bytes, are not what was committed.
    Corrupt(Error),
    /// The engine failed to read it.
    Failed(Error),
}

type Result<T> = std::result::Result<T, Trouble>;

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Corrupt => Self::Corrupt(error),
            _ => Self::Failed(error),
        }
    }
}

/// Held until the last bytes have moved; dropping it ends its receiver.
pub(crate) type Moving = mpsc::Sender<Infallible>;

/// An object that has arrived and is not checked yet.
struct Arrived {
    object: Incoming,
    /// Where it has arrived: in a stage, or at its destination.
    at: Vec<Span>,
    /// Where a sealed object is opened that goes to a device.
    plain: Option<Span>,
}

impl Io {
    /// Reads objects into their memory and checks them. `moving` is dropped when the last bytes have moved.
    pub(crate) async fn fetch(&self, objects: Vec<Incoming>, moving: Moving, deadline: Deadline) -> Result<()> {
        let staged = objects.iter().any(|object| object.staged);
        let (max_batch, of) = (self.runtime.max_batch(), Incoming::bytes);
        let units = match &self.seals {
            Some(seals) => split_shrinking(objects, max_batch, seals.unit_bytes(), of),
            None if staged => {
                let most = STAGED_UNIT_BYTES.min(self.runtime.config.stage_bytes / 2);
                split(objects, max_batch, most, of)
            }
            None => split(objects, max_batch, UNIT_BYTES, of),
        };
        let mut units = units.into_iter().peekable();
        let mut moving = Some(moving);
        let mut checking = JoinSet::new();
        let mut outcome = Ok(());
        while let Some(unit) = units.next() {
            // Checks of the last call run beside this one; those before it have ended. So a few stages are enough, and
            // a corrupt sample is not read to its end.
            while outcome.is_ok() && checking.len() > self.runtime.config.streams {
                outcome = next_of(&mut checking).await;
            }
            if outcome.is_err() {
                break;
            }
            let last = units.peek().is_none();
            let told = if last { moving.take() } else { None };
            let arrived = match self.bring(unit, told, deadline).await {
                Ok(arrived) => self.with_plain(arrived, deadline).await,
                Err(trouble) => Err(trouble),
            };
            match arrived {
                Ok(arrived) => {
                    for share in shares(arrived, self.runtime.config.streams) {
                        let calls = match share.goes_to_device() {
                            true => self.runtime.for_device.clone(),
                            false => self.runtime.blocking.clone(),
                        };
                        let clock = Arc::clone(&self.runtime.clock);
                        let check = move |_| Ok(share.check(|| deadline.remaining(&*clock)));
                        checking.spawn(async move { calls.run(OPERATION, deadline, check).await? });
                    }
                }
                Err(trouble) => outcome = Err(trouble),
            }
        }
        drop(moving);
        while !checking.is_empty() {
            // All checks end before this function does: the caller that clears the memory after a failure is then the
            // only one that touches it.
            let ended = next_of(&mut checking).await;
            outcome = outcome.and(ended);
        }
        outcome
    }

    /// One call: gets some objects. Returns those that are not checked yet.
    async fn bring(&self, unit: Vec<Incoming>, moving: Option<Moving>, deadline: Deadline) -> Result<Vec<Arrived>> {
        let stage = stage_of(&unit, &self.stages.incoming, deadline).await?;
        let (engine, clock) = (Arc::clone(&self.runtime.engine), Arc::clone(&self.runtime.clock));
        let work = move |within| {
            let bytes: u64 = unit.iter().map(Incoming::bytes).sum();
            Ok(get(&*engine, unit, stage.as_ref(), moving, within).and_then(|arrived| {
                // A copy to a device, too, is waited for beside the next call.
                if bytes > CHECKED_AT_ONCE || arrived.iter().any(|one| one.object.memory.device().is_some()) {
                    return Ok(arrived);
                }
                let share = Share(arrived);
                share.check(|| deadline.remaining(&*clock)).map(|()| Vec::new())
            }))
        };
        self.runtime.blocking.run(OPERATION, deadline, work).await?
    }

    /// Memory to open sealed objects in that go to a device.
    async fn with_plain(&self, mut arrived: Vec<Arrived>, deadline: Deadline) -> Result<Vec<Arrived>> {
        let opened = |one: &&mut Arrived| one.object.opens_for_device();
        let len = arrived
            .iter_mut()
            .filter(opened)
            .map(|one| one.object.memory.len())
            .sum();
        if len == 0 {
            return Ok(arrived);
        }
        let plain = self.stages.plain.take(len, deadline).await?;
        let mut at = 0;
        for one in arrived.iter_mut().filter(opened) {
            let len = one.object.memory.len();
            one.plain = Some(part(&plain, at, len)?);
            at += len;
        }
        Ok(arrived)
    }
}

/// The next check to end.
async fn next_of(checking: &mut JoinSet<Result<()>>) -> Result<()> {
    match checking.join_next().await {
        None => Ok(()),
        Some(Ok(checked)) => checked,
        Some(Err(failure)) => Err(Error::internal(OPERATION, "a check panicked or was cancelled")
            .caused_by(failure)
            .into()),
    }
}

impl Incoming {
    /// The length of the object.
    fn bytes(&self) -> u64 {
        match &self.check {
            Check::Seal(seal) => seal.run.sealed_len(),
            Check::Nothing | Check::Digest(_) => self.memory.len() as u64,
        }
    }

    fn opens_for_device(&self) -> bool {
        matches!(self.check, Check::Seal(_)) && self.memory.device().is_some()
    }

    /// How many bytes of a stage it needs, if it arrives in one.
    fn staged_len(&self) -> Result<Option<usize>> {
        match &self.check {
            Check::Seal(seal) => Ok(Some(seal.sealed_len()?)),
            Check::Nothing | Check::Digest(_) if self.staged => Ok(Some(self.memory.len())),
            Check::Nothing | Check::Digest(_) => Ok(None),
        }
    }
}

/// A stage for the objects that do not arrive at their destination.
async fn stage_of(unit: &[Incoming], stages: &BufferPool, deadline: Deadline) -> Result<Option<Span>> {
    let mut len = 0;
    for object in unit {
        len += object.staged_len()?.unwrap_or(0);
    }
    match len {
        0 => Ok(None),
        len => Ok(Some(stages.take(len, deadline).await?)),
    }
}

/// Where objects arrive: in the stage, or at their destination.
fn destinations(unit: Vec<Incoming>, stage: Option<&Span>) -> Result<Vec<Arrived>> {
    let mut from = 0;
    let arrive = |object: Incoming| {
        let at = match (object.staged_len()?, stage) {
            (Some(len), Some(stage)) => {
                from += len;
                vec![part(stage, from - len, len)?]
            }
            (Some(_), None) => return Err(Error::internal(OPERATION, "an object has no stage to arrive in").into()),
            (None, _) => object.memory.host().to_vec(),
        };
        Ok(Arrived {
            object,
            at,
            plain: None,
        })
    };
    unit.into_iter().map(arrive).collect()
}

fn get(
    engine: &dyn Engine,
    unit: Vec<Incoming>,
    stage: Option<&Span>,
    moving: Option<Moving>,
    within: Duration,
) -> Result<Vec<Arrived>> {
    let arrived = destinations(unit, stage)?;
    let transfers: Vec<Transfer> = arrived
        .iter()
        .map(|Arrived { object, at, .. }| Transfer::scattered(object.key.clone(), at.clone()))
        .collect();
    let outcomes = engine.get(&transfers, within);
    drop(moving);
    let outcomes = outcomes.map_err(Trouble::Failed)?;
    if outcomes.len() != arrived.len() {
        return Err(Error::internal(OPERATION, "the engine returned another number of outcomes than objects").into());
    }
    for (Arrived { object, .. }, outcome) in arrived.iter().zip(outcomes) {
        match outcome {
            GetOutcome::Loaded => {}
            GetOutcome::Miss => return Err(Trouble::Missing(object.key.clone())),
            GetOutcome::Unfinished => {
                let error = Error::unavailable(
                    OPERATION,
                    "a committed object cannot be read yet: the engine has no whole copy of it now; try again",
                );
                return Err(Trouble::Failed(error.with("key", &object.key)));
            }
            GetOutcome::WrongLength { stored } => {
                let error = Error::new(
                    ErrorKind::Corrupt,
                    OPERATION,
                    "an object is not as long as it was when it was committed; nothing was handed out",
                );
                return Err(Trouble::Corrupt(
                    error
                        .with("key", &object.key)
                        .with("committed", object.bytes())
                        .with("stored", stored),
                ));
            }
            GetOutcome::Failed(error) => return Err(Trouble::Failed(error.with("key", &object.key))),
        }
    }
    Ok(arrived)
}

/// What one thread checks.
struct Share(Vec<Arrived>);

/// Divides objects among threads, so that each checks about as many bytes.
fn shares(arrived: Vec<Arrived>, threads: usize) -> Vec<Share> {
    let mut shares: Vec<(u64, Vec<Arrived>)> = (0..threads.max(1)).map(|_| (0, Vec::new())).collect();
    for one in arrived {
        if matches!(one.object.check, Check::Nothing) && !one.object.staged {
            continue;
        }
        if let Some((bytes, share)) = shares.iter_mut().min_by_key(|(bytes, _)| *bytes) {
            *bytes += one.object.bytes();
            share.push(one);
        }
    }
    let filled = shares.into_iter().filter(|(_, share)| !share.is_empty());
    filled.map(|(_, share)| Share(share)).collect()
}

impl Share {
    fn goes_to_device(&self) -> bool {
        self.0.iter().any(|one| one.object.memory.device().is_some())
    }

    fn check(&self, left: impl Fn() -> Duration) -> Result<()> {
        let mut scratch = Scratch::default();
        let mut copies = Vec::new();
        for one in &self.0 {
            let checked = match one.object.memory.device() {
                None => one.check(&mut scratch),
                // While it is copied, the next object is checked.
                Some(part) => one
                    .check_for(part, &mut scratch)
                    .map(|copying| copies.push((copying, one))),
            };
            checked.map_err(|error| error.with("key", &one.object.key))?;
        }
        for (copying, one) in copies {
            copying
                .ended(left())
                .map_err(|error| error.with("key", &one.object.key))?;
        }
        Ok(())
    }
}

impl Arrived {
    /// Checks it; on the way to its destination, if it has arrived in a stage.
    fn check(&self, scratch: &mut Scratch) -> tensorhold_core::Result<()> {
        let to = self.object.memory.host();
        match (&self.object.check, self.at.as_slice()) {
            (Check::Nothing, [stage]) if self.object.staged => verify_copied(stage, to, None),
            (Check::Digest(recorded), [stage]) if self.object.staged => verify_copied(stage, to, Some(*recorded)),
            (Check::Nothing, _) => Ok(()),
            (Check::Digest(recorded), parts) => verify(parts, *recorded),
            (Check::Seal(seal), [stage]) => seal.open(stage, to, scratch),
            (Check::Seal(_), _) => Err(in_pieces()),
        }
    }

    /// Checks it, and begins to copy it to its device.
    fn check_for(&self, to: &DevicePart, scratch: &mut Scratch) -> tensorhold_core::Result<Copying> {
        let [stage] = self.at.as_slice() else {
            return Err(in_pieces());
        };
        let checked = match (&self.object.check, &self.plain) {
            (Check::Nothing, _) => stage,
            (Check::Digest(recorded), _) => {
                verify(&self.at, *recorded)?;
                stage
            }
            (Check::Seal(seal), Some(plain)) => {
                seal.open(stage, std::slice::from_ref(plain), scratch)?;
                plain
            }
            (Check::Seal(_), None) => {
                return Err(Error::internal(OPERATION, "a sealed object has no memory to open in"));
            }
        };
        to.begin(Direction::ToDevice, checked)
    }
}

fn in_pieces() -> Error {
    Error::internal(OPERATION, "an object that passes through a stage arrived in pieces")
}
