//! Moving objects: batches, retries for room, and checks that run while the next bytes move.
//!
//! **Out** ([`Inner::send`]): one batched put for all objects of all samples. An object that finds the engine full was not
//! written, so it is tried again after a pause that grows, until the deadline; somewhere else a sample is freed. Any
//! other failure is final for its sample.
//!
//! **In** ([`Inner::fetch`]): objects are got in several calls, a few at once (*lanes*). Each lane checks what its call
//! brought while the other lanes' bytes move, so on two cores checksums cost next to nothing:
//!
//! ```text
//! lane 1  ── get 1 ──┬ check 1 ┬── get 3 ──┬ check 3 ┐
//! lane 2  ── get 2 ──┴┬ check 2 ┬─ get 4 ──┴┬ check 4 ┐      all bytes are there: ask whether the lease still holds
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Digest, Error, ErrorKind, ObjectKey, Result};
use holdfast_engine::{Engine, GetOutcome, PutOptions, PutOutcome, Span, Transfer};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::codec::Encoding;
use crate::store::Inner;

/// The first pause of a put that finds no room; each later one is half as long again, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The most bytes of one call of a get. Small objects share a call.
const UNIT_BYTES: u64 = 32 << 20;

/// An object on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Which of the samples it belongs to.
    pub(crate) sample: usize,
    pub(crate) transfer: Transfer,
}

/// An object on its way in.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) key: ObjectKey,
    pub(crate) parts: Vec<Span>,
    pub(crate) recorded: Option<Digest>,
}

impl Incoming {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

/// Why bytes did not come in.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// There is no such object.
    Missing(ObjectKey),
    /// The object, or its bytes, are not what was committed.
    Corrupt(Error),
    /// The engine did not do it.
    Failed(Error),
}

/// Held by every call whose bytes may still be moving; its receiver ends when all are there.
pub(crate) type Moving = mpsc::Sender<Infallible>;

/// What one call gets.
struct Unit {
    objects: Vec<Incoming>,
    moving: Moving,
}

impl Inner {
    fn put_options(&self) -> PutOptions {
        PutOptions {
            replicas: self.config.replicas,
            ..PutOptions::default()
        }
    }

    /// Writes objects. Returns for each of `samples` samples whether all its objects are stored.
    pub(crate) async fn send(&self, objects: Vec<Outgoing>, samples: usize, deadline: Deadline) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = (0..samples).map(|_| Ok(())).collect();
        let mut open = objects;
        let mut pause = FIRST_PAUSE;
        loop {
            let mut full = Vec::new();
            while !open.is_empty() {
                let rest = open.split_off(open.len().min(self.max_batch()));
                let batch = std::mem::replace(&mut open, rest);
                self.send_batch(batch, &mut results, &mut full, deadline).await;
            }
            // Of a sample that failed, nothing more is written.
            full.retain(|object: &Outgoing| results[object.sample].is_ok());
            if full.is_empty() {
                return results;
            }
            let left = deadline.remaining(&*self.clock);
            if left <= pause {
                for object in full {
                    results[object.sample] = Err(no_room(&object.transfer.key));
                }
                return results;
            }
            self.count.waits_for_room.one();
            // Perhaps something is to be freed that nobody has looked at yet.
            self.frees.collect_soon();
            let spread = self.rng.below(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX) / 2);
            tokio::time::sleep(pause / 2 + Duration::from_nanos(spread)).await;
            pause = (pause + pause / 2).min(LONGEST_PAUSE);
            open = full;
        }
    }

    async fn send_batch(
        &self,
        batch: Vec<Outgoing>,
        results: &mut [Result<()>],
        full: &mut Vec<Outgoing>,
        deadline: Deadline,
    ) {
        let (samples, transfers): (Vec<usize>, Vec<Transfer>) =
            batch.into_iter().map(|object| (object.sample, object.transfer)).unzip();
        let (engine, options) = (Arc::clone(&self.engine), self.put_options());
        let answer = self
            .calls
            .run("features.put", deadline, move |within| {
                let outcomes = engine.put(&transfers, &options, within)?;
                Ok(outcomes.into_iter().zip(transfers).collect::<Vec<_>>())
            })
            .await;
        match answer {
            Ok(outcomes) => {
                for (sample, (outcome, transfer)) in samples.into_iter().zip(outcomes) {
                    match outcome {
                        PutOutcome::Stored => {}
                        PutOutcome::Full => full.push(Outgoing { sample, transfer }),
                        PutOutcome::Failed(error) => results[sample] = Err(error.with("key", &transfer.key)),
                    }
                }
            }
            Err(error) => {
                for sample in samples {
                    results[sample] = Err(error.clone());
                }
            }
        }
    }

    /// Computes what is recorded of objects, beside their transfer.
    pub(crate) async fn digests(
        &self,
        chunks: Vec<Vec<Span>>,
        encoding: Encoding,
        deadline: Deadline,
    ) -> Result<Vec<Digest>> {
        let record = move |_| chunks.iter().map(|parts| encoding.record(parts)).collect();
        self.calls.run("features.checksum", deadline, record).await
    }

    /// Reads objects into their memory and checks them. `moving` is dropped when the last bytes have moved.
    pub(crate) async fn fetch(
        &self,
        objects: Vec<Incoming>,
        encoding: &Encoding,
        moving: Moving,
        deadline: Deadline,
    ) -> std::result::Result<(), Trouble> {
        let units: VecDeque<Unit> = split(objects, self.max_batch(), &moving).into();
        drop(moving);
        let lanes = units.len().min(self.config.streams);
        let units = Arc::new(Mutex::new(units));
        let mut running = JoinSet::new();
        for _ in 0..lanes {
            let (units, encoding) = (Arc::clone(&units), encoding.clone());
            let (engine, calls) = (Arc::clone(&self.engine), self.calls.clone());
            running.spawn(async move {
                loop {
                    let Some(unit) = units.lock().pop_front() else {
                        return Ok(());
                    };
                    let (engine, encoding) = (Arc::clone(&engine), encoding.clone());
                    let work = move |within| Ok(get_and_check(&*engine, unit, &encoding, within));
                    let done = calls.run("features.get", deadline, work).await;
                    if let Err(trouble) = done.unwrap_or_else(|error| Err(Trouble::Failed(error))) {
                        // The others have nothing to hope for.
                        units.lock().clear();
                        return Err(trouble);
                    }
                }
            });
        }
        let mut first = Ok(());
        while let Some(ended) = running.join_next().await {
            let ended = ended.unwrap_or_else(|failure| {
                let error = Error::internal("features.get", "a lane did not end as it should").caused_by(failure);
                Err(Trouble::Failed(error))
            });
            first = first.and(ended);
        }
        first
    }
}

fn no_room(key: &ObjectKey) -> Error {
    Error::new(
        ErrorKind::Capacity,
        "features.put",
        "the engine had no room until the deadline; free samples, add holders, or give the store a budget",
    )
    .with("key", key)
}

/// Divides objects into calls: large ones by themselves, small ones together.
fn split(objects: Vec<Incoming>, max_batch: usize, moving: &Moving) -> Vec<Unit> {
    let unit = || Unit {
        objects: Vec::new(),
        moving: moving.clone(),
    };
    let mut units: Vec<Unit> = Vec::new();
    let mut bytes = 0;
    for object in objects {
        let more = object.bytes();
        let fits = |unit: &Unit| unit.objects.len() < max_batch && bytes + more <= UNIT_BYTES;
        if !units.last().is_some_and(fits) {
            units.push(unit());
            bytes = 0;
        }
        bytes += more;
        if let Some(last) = units.last_mut() {
            last.objects.push(object);
        }
    }
    units
}

fn get_and_check(
    engine: &dyn Engine,
    unit: Unit,
    encoding: &Encoding,
    within: Duration,
) -> std::result::Result<(), Trouble> {
    let Unit { objects, moving } = unit;
    let transfers: Vec<Transfer> = objects
        .iter()
        .map(|object| Transfer::scattered(object.key.clone(), object.parts.clone()))
        .collect();
    let outcomes = engine.get(&transfers, within);
    drop(moving);
    let outcomes = outcomes.map_err(Trouble::Failed)?;
    if outcomes.len() != objects.len() {
        let error = Error::internal(
            "features.get",
            "the engine gave another number of outcomes than objects",
        );
        return Err(Trouble::Failed(error));
    }
    for (object, outcome) in objects.iter().zip(outcomes) {
        match outcome {
            GetOutcome::Loaded => {}
            GetOutcome::Miss => return Err(Trouble::Missing(object.key.clone())),
            GetOutcome::WrongLength { stored } => {
                let error = Error::new(
                    ErrorKind::Corrupt,
                    "features.get",
                    "an object is not as long as it was committed; nothing was handed out",
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
    for object in &objects {
        let checked = encoding.verify(&object.parts, object.recorded);
        checked.map_err(|error| Trouble::Corrupt(error.with("key", &object.key)))?;
    }
    Ok(())
}
