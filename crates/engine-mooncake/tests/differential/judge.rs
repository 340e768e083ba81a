//! When two answers may differ: only for a reason with a name.

use std::fmt;

use tensorhold_core::ObjectKey;
use tensorhold_engine::{Pin, Usage};

use crate::model::Model;
use crate::op::{Object, Op};
use crate::pool;
use crate::profile::{Profile, Scene};
use crate::side::{Answer, Seen, Side};

/// A difference that the contract allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowed {
    /// One has room for an object and the other has not. [`tensorhold_engine::PutOutcome::Full`]: "There is no room now;
    /// nothing was written."
    ///
    /// The memory engine has no fragmentation, on purpose; the real allocator takes an object's length, rounded up, out
    /// of one hole. So: only the real one may be full, only with use within [`EDGE`] of the capacity, and only if none
    /// of its holes, as it shows them itself, would have held the object. The object is then removed from both.
    CapacityEdge,
    /// One has evicted an object and the other has not yet, or it was another one. [`Pin::Evictable`]: "The engine may
    /// evict it when memory gets short." [`Pin::Soft`]: "The engine may evict it once this time has passed since the
    /// last use, and earlier only when nothing else can go." [`tensorhold_engine::PutOutcome::Full`]: "The engine may be
    /// making room: try again later."
    ///
    /// Only in a pool that has been short, and never of a hard-pinned object. What only one still has is then removed
    /// from both.
    EvictionTiming,
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How far from full, in percent of the pool, an object may meet the edge of the capacity. Measured on 764 such edges in
/// 26 seeds: nine in ten with more than 81 % in use, the earliest with 64 %. The holes are the sharper check.
pub const EDGE: u64 = 40;

/// What is known when two answers are compared.
pub struct Circumstances<'a> {
    pub profile: &'a Profile,
    pub model: &'a Model,
    /// Use of the memory engine before the operation.
    pub before: Usage,
    /// Whether the pool has come so near to full that eviction may have begun.
    pub short: bool,
    pub real: &'a Side,
}

/// Compares two answers: the reason for each object that differs, or why there is none.
pub fn judge(op: &Op, memory: &Answer, real: &Answer, at: &Circumstances<'_>) -> Result<Vec<(usize, Allowed)>, String> {
    let broken = |answer: &Answer| matches!(answer, Answer::Objects(seen) if seen.iter().any(is_broken));
    if broken(memory) || broken(real) {
        return Err("bytes that nobody put there".to_owned());
    }
    if memory == real {
        return Ok(Vec::new());
    }
    match (memory, real) {
        (Answer::Objects(of_memory), Answer::Objects(of_real)) if of_memory.len() == of_real.len() => {
            let mut reasons = Vec::new();
            for (i, (memory, real)) in of_memory.iter().zip(of_real).enumerate() {
                if memory != real {
                    let reason = match op {
                        Op::Put { objects, .. } => {
                            let (memory, real) = (of_memory, of_real);
                            Put { objects, memory, real }.room(i, &reasons, at)
                        }
                        _ => evicted(op.keys()[i], memory, real, at),
                    };
                    let reason = reason.map_err(|why| format!("object {i}, {:?}: {why}", op.keys()[i].as_str()))?;
                    reasons.push((i, reason));
                }
            }
            Ok(reasons)
        }
        // Whether the figures agree once what was evicted here or there is put right, is seen after that.
        (Answer::Usage(memory), Answer::Usage(real))
            if at.profile.scene == Scene::Evicting && at.short && memory.dram_capacity == real.dram_capacity =>
        {
            Ok(vec![(0, Allowed::EvictionTiming)])
        }
        _ => Err("the answers differ".to_owned()),
    }
}

fn is_broken(seen: &Seen) -> bool {
    matches!(seen, Seen::OtherBytes(_) | Seen::Overrun)
}

/// What both made of the objects of a put.
struct Put<'a> {
    objects: &'a [Object],
    memory: &'a [Seen],
    real: &'a [Seen],
}

impl Put<'_> {
    /// What an engine that answered `seen` had newly stored of the batch when it came to object `i`.
    fn stored<'a>(&'a self, seen: &'a [Seen], i: usize, model: &'a Model) -> impl Iterator<Item = &'a Object> {
        let before = self.objects[..i].iter().zip(seen);
        let stored = before
            .filter(|(_, seen)| **seen == Seen::Stored)
            .map(|(object, _)| object);
        stored.filter(|object| model.get(&object.key).is_none())
    }

    /// Why one had room for object `i` and the other had not.
    fn room(&self, i: usize, before: &[(usize, Allowed)], at: &Circumstances<'_>) -> Result<Allowed, String> {
        let (len, capacity) = (self.objects[i].len() as u64, at.profile.capacity());
        let needs = |seen| {
            let stored = self.stored(seen, i, at.model).map(|object| object.len() as u64);
            at.before.dram_used + stored.sum::<u64>() + len
        };
        match (at.profile.scene, &self.memory[i], &self.real[i]) {
            (Scene::Evicting, Seen::Stored, Seen::Full) | (Scene::Evicting, Seen::Full, Seen::Stored) if at.short => {
                Ok(Allowed::EvictionTiming)
            }
            // An object of this batch that only the memory engine has stored took the room of this one.
            (Scene::Filling, Seen::Full, Seen::Stored)
                if !before.is_empty() && needs(self.memory) > capacity && needs(self.real) <= capacity =>
            {
                Ok(Allowed::CapacityEdge)
            }
            (Scene::Filling, Seen::Stored, Seen::Full) => {
                let (needs, edge) = (needs(self.real), capacity / 100 * (100 - EDGE));
                if needs <= edge {
                    return Err(format!("full, with this object at {needs} bytes; the edge is {edge}"));
                }
                let mut there = at.model.keys();
                there.extend(self.stored(self.real, i, at.model).map(|object| object.key.clone()));
                let extents = at.real.fate.extents(&there).ok_or("this engine has no holes")?;
                let hole = pool::largest_hole(extents, capacity)?;
                if pool::fits(len, hole) {
                    return Err(format!("full, but there is a hole of {hole} bytes"));
                }
                Ok(Allowed::CapacityEdge)
            }
            _ => Err("the outcomes differ".to_owned()),
        }
    }
}

fn evicted(key: &ObjectKey, memory: &Seen, real: &Seen, at: &Circumstances<'_>) -> Result<Allowed, String> {
    let gone = |seen: &Seen| matches!(seen, Seen::Miss | Seen::Absent);
    let there = |seen: &Seen| {
        matches!(
            seen,
            Seen::Loaded | Seen::WrongLength(_) | Seen::Removed | Seen::Present { .. } | Seen::InDram
        )
    };
    if !(gone(memory) && there(real) || there(memory) && gone(real)) {
        return Err("the outcomes differ".to_owned());
    }
    match at.model.get(key) {
        Some(first) if first.pin != Pin::Hard && at.short => Ok(Allowed::EvictionTiming),
        Some(_) => Err("only one has it, and neither may have evicted it".to_owned()),
        None => Err("only one has it, and neither should".to_owned()),
    }
}
