//! Moving objects off a holder: the holder itself moves them, when it is asked to; what became of that is seen by where
//! they are.
//!
//! ```text
//!  queued ──asked──▶ in motion ──it is not there any more──▶ moved, or removed by its store
//!    ▲                   │
//!    └── still there ────┘  after RETRY, or when another master leads
//! ```
//! A holder fetches 16 requests a second (`tests/truths` of the engine's crate), so few are in motion at a time: what a
//! drain that dies has asked for ends soon, and another drain asks anew. To ask twice does no harm: of two moves of an
//! object the later one finds nothing to move.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ObjectKey, Timestamp};
use tensorhold_engine::{Engine, RelocateOutcome};

use super::super::holders::{self, ASK};
use super::look::Moving;
use crate::admin::{Presence, Segment};
use crate::failure::Failure;
use crate::reach::Reach;

/// Objects in motion at a time.
const AT_ONCE: usize = 64;
/// When a request that had no effect is made again.
const RETRY: Duration = Duration::from_secs(20);

/// The objects that are to leave a holder.
pub(super) struct Mover<'a> {
    pub(super) reach: &'a Reach,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) holder: &'a str,
    queued: VecDeque<Moving>,
    in_motion: HashMap<String, (Moving, String, Timestamp)>,
    /// The address of the master that was asked last.
    asked: Option<String>,
    /// Why a request was refused last.
    pub(super) refused: Option<String>,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    /// Objects that lie elsewhere now.
    pub(super) moved: u64,
    pub(super) bytes: u64,
    /// Objects that were removed meanwhile.
    pub(super) gone: u64,
}

impl<'a> Mover<'a> {
    pub(super) fn new(reach: &'a Reach, engine: Arc<dyn Engine>, holder: &'a str, objects: Vec<Moving>) -> Self {
        Self {
            reach,
            engine,
            holder,
            queued: objects.into(),
            in_motion: HashMap::new(),
            asked: None,
            refused: None,
        }
    }

    pub(super) fn left(&self) -> usize {
        self.queued.len() + self.in_motion.len()
    }

    /// The objects that have not moved.
    pub(super) fn remaining(self) -> Vec<Moving> {
        let in_motion = self.in_motion.into_values().map(|(moving, ..)| moving);
        self.queued.into_iter().chain(in_motion).collect()
    }

    /// Sees what has moved, and asks for more. `master` is the one that leads.
    pub(super) async fn step(&mut self, master: String, segments: &[Segment]) -> Result<Step, Failure> {
        let step = self.see().await?;
        if self.asked.as_ref() != Some(&master) {
            // Another one knows nothing of what its predecessor was asked.
            let forgotten = self.in_motion.drain().map(|(_, (moving, ..))| moving);
            self.queued.extend(forgotten);
            self.asked = Some(master);
        }
        self.ask(segments).await?;
        Ok(step)
    }

    async fn see(&mut self) -> Result<Step, Failure> {
        let mut step = Step::default();
        if self.in_motion.is_empty() {
            return Ok(step);
        }
        let keys: Vec<String> = self.in_motion.keys().cloned().collect();
        let seen = holders::probe(self.reach, keys.clone()).await?;
        let now = self.reach.clock.now();
        for (key, presence) in keys.into_iter().zip(seen) {
            let is_there = match &presence {
                Presence::Present { dram, .. } => dram.iter().any(|one| one == self.holder),
                // Not a word about where it is.
                Presence::Unfinished | Presence::Unknown(_) => true,
                Presence::Absent => false,
            };
            let is_late = |(_, _, since): &(Moving, String, Timestamp)| now.since(*since) > RETRY;
            if is_there {
                if self.in_motion.get(&key).is_some_and(is_late)
                    && let Some((moving, ..)) = self.in_motion.remove(&key)
                {
                    self.queued.push_back(moving);
                }
            } else if let Some((moving, ..)) = self.in_motion.remove(&key) {
                if presence == Presence::Absent {
                    step.gone += 1;
                } else {
                    step.moved += 1;
                    step.bytes += moving.bytes;
                }
            }
        }
        Ok(step)
    }

    async fn ask(&mut self, segments: &[Segment]) -> Result<(), Failure> {
        let mut free = Free::of(segments, self.holder);
        for (moving, to, _) in self.in_motion.values() {
            free.take(to, moving.bytes);
        }
        let mut batches: HashMap<String, Vec<Moving>> = HashMap::new();
        let mut asked = 0;
        for _ in 0..self.queued.len() {
            if self.in_motion.len() + asked >= AT_ONCE {
                break;
            }
            let Some(moving) = self.queued.pop_front() else { break };
            match free.place(&moving) {
                Some(to) => {
                    asked += 1;
                    batches.entry(to).or_default().push(moving);
                }
                // There may be room when samples have ended.
                None => self.queued.push_back(moving),
            }
        }
        let mut batches = batches.into_iter();
        for (to, batch) in batches.by_ref() {
            if let Err(failure) = self.request(&to, batch).await {
                self.queued.extend(batches.flat_map(|(_, batch)| batch));
                return Err(failure);
            }
        }
        Ok(())
    }

    async fn request(&mut self, to: &str, batch: Vec<Moving>) -> Result<(), Failure> {
        let keys: Vec<ObjectKey> = batch.iter().map(|one| one.key.clone()).collect();
        let (engine, from, target) = (Arc::clone(&self.engine), self.holder.to_owned(), to.to_owned());
        let within = self.reach.left().min(ASK);
        let asking = tokio::task::spawn_blocking(move || engine.relocate(&keys, &from, &target, within));
        let outcomes = asking.await.unwrap_or_else(|failure| {
            let what = "the task that asks for moves panicked or was cancelled";
            Err(tensorhold_core::Error::internal("command.drain", what).caused_by(failure))
        });
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.queued.extend(batch);
                return Err(Failure::of("the holder cannot be asked to move objects", &error));
            }
        };
        let now = self.reach.clock.now();
        for (moving, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                // Of one that is absent, too, the next look says what became of it.
                RelocateOutcome::Asked | RelocateOutcome::Absent => {
                    let key = moving.key.to_string();
                    self.in_motion.insert(key, (moving, to.to_owned(), now));
                }
                RelocateOutcome::Failed(error) => {
                    self.refused = Some(error.message().to_owned());
                    self.queued.push_back(moving);
                }
            }
        }
        Ok(())
    }
}

/// The room on the other holders that are given new objects.
struct Free(Vec<(String, u64)>);

impl Free {
    fn of(segments: &[Segment], holder: &str) -> Self {
        let open = others(segments, holder);
        let room = |one: &Segment| one.allocator_capacity_bytes.saturating_sub(one.allocator_used_bytes);
        Self(open.map(|one| (one.segment_name.clone(), room(one))).collect())
    }

    fn take(&mut self, holder: &str, bytes: u64) {
        if let Some((_, free)) = self.0.iter_mut().find(|(name, _)| name == holder) {
            *free = free.saturating_sub(bytes);
        }
    }

    /// Where an object goes: to the holder with the most room that has no copy of it. If there is none, to one that has:
    /// nothing is written then, and the copy on the drained holder is given up.
    fn place(&mut self, moving: &Moving) -> Option<String> {
        let fits = |(name, free): &&(String, u64)| *free >= moving.bytes && !moving.others.contains(name);
        if let Some((name, _)) = self.0.iter().filter(fits).max_by_key(|(_, free)| *free) {
            let name = name.clone();
            self.take(&name, moving.bytes);
            return Some(name);
        }
        let has = |(name, _): &&(String, u64)| moving.others.contains(name);
        self.0.iter().find(has).map(|(name, _)| name.clone())
    }
}

/// The other holders that are given new objects.
pub(super) fn others<'a>(segments: &'a [Segment], holder: &'a str) -> impl Iterator<Item = &'a Segment> {
    let is_open = move |one: &&Segment| one.segment_name != holder && one.status == "OK";
    segments.iter().filter(is_open)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(name: &str, status: &str, used: u64) -> Segment {
        Segment {
            segment_name: name.to_owned(),
            status: status.to_owned(),
            allocator_used_bytes: used,
            allocator_capacity_bytes: 100,
            ..Segment::default()
        }
    }

    fn moving(bytes: u64, others: &[&str]) -> Moving {
        Moving {
            key: "k".parse().expect("a key"),
            bytes,
            others: others.iter().map(|one| (*one).to_owned()).collect(),
        }
    }

    #[test]
    fn objects_go_where_room_is_and_no_copy_of_them() {
        let all = [
            segment("drained", "DRAINING", 0),
            segment("closed", "DRAINING", 0),
            segment("a", "OK", 50),
            segment("b", "OK", 20),
        ];
        let mut free = Free::of(&all, "drained");
        assert_eq!(free.place(&moving(60, &[])).as_deref(), Some("b"));
        assert_eq!(free.place(&moving(60, &[])), None, "no room is left for it");
        assert_eq!(free.place(&moving(30, &[])).as_deref(), Some("a"));
        assert_eq!(free.place(&moving(20, &["b"])).as_deref(), Some("a"), "a second copy");
        assert_eq!(
            free.place(&moving(20, &["b"])).as_deref(),
            Some("b"),
            "no other has room: one copy is enough"
        );
        assert_eq!(Free::of(&all[..2], "drained").place(&moving(1, &[])), None);
    }
}
