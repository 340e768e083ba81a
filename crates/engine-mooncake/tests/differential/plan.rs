//! Sequences of operations that follow from a seed alone, whatever the engines answer.
//!
//! The planner keeps its own idea of what should be there, so that most operations mean something: it puts keys anew,
//! reads with the right length and with wrong ones, removes what lives and what does not. Where an engine refused a put
//! (a full pool) the idea is wrong, and that is fine: it only draws with it, it judges nothing.

use tensorhold_core::Rng;
use tensorhold_engine::Pin;

use crate::draw::{Idea, Planner};
use crate::op::{Call, Object, Oddity, Op, Read};
use crate::profile::{Profile, Scene};

/// Every call with everything that can be odd about it.
const ODD: &[(Call, Oddity)] = &[
    (Call::Put, Oddity::Twice),
    (Call::Put, Oddity::NoParts),
    (Call::Put, Oddity::NoCopies),
    (Call::Put, Oddity::Foreign),
    (Call::Put, Oddity::TooMany),
    (Call::Put, Oddity::NoTime),
    (Call::Put, Oddity::Empty),
    (Call::Get, Oddity::Twice),
    (Call::Get, Oddity::NoParts),
    (Call::Get, Oddity::Foreign),
    (Call::Get, Oddity::TooMany),
    (Call::Get, Oddity::NoTime),
    (Call::Get, Oddity::Empty),
    (Call::Remove, Oddity::TooMany),
    (Call::Remove, Oddity::NoTime),
    (Call::Remove, Oddity::Empty),
    (Call::Probe, Oddity::TooMany),
    (Call::Probe, Oddity::NoTime),
    (Call::Probe, Oddity::Empty),
    (Call::Promote, Oddity::TooMany),
    (Call::Promote, Oddity::NoTime),
    (Call::Promote, Oddity::Empty),
    (Call::Usage, Oddity::NoTime),
];
/// The most objects of one batch.
const MOST_OBJECTS: usize = 16;

/// `operations` drawn from `seed`, and then a sweep: everything is probed, read, removed, and use is asked for.
pub fn plan(seed: u64, operations: usize, profile: &Profile) -> Vec<Op> {
    let mut planner = Planner::new(seed, profile);
    while planner.plan.len() < operations {
        planner.step(operations);
    }
    planner.plan.truncate(operations);
    planner.sweep();
    planner.plan
}

impl Planner<'_> {
    fn step(&mut self, operations: usize) {
        // Dead writers are slow on a real cluster: a few, at fixed places.
        if self.abandons < self.profile.abandons
            && self.plan.len() >= (self.abandons + 1) * operations / (3 * self.profile.abandons)
        {
            return self.abandon();
        }
        if self.live(|_| true).len() > self.profile.most_live || self.live_bytes(false) > self.profile.most_live_bytes {
            return self.remove(MOST_OBJECTS);
        }
        let weights = &self.profile.weights;
        let mut at = self.below(weights.iter().map(|(_, weight)| weight).sum());
        let (call, _) = weights
            .iter()
            .find(|(_, weight)| {
                let found = at < *weight;
                at = at.saturating_sub(*weight);
                found
            })
            .expect("the draw is below the sum of the weights");
        match call {
            Some(Call::Put) => self.put(),
            Some(Call::Get) => self.get(),
            Some(Call::Remove) => self.remove(4),
            Some(Call::Probe) => {
                let (client, keys) = (self.client(), self.any_keys(MOST_OBJECTS));
                self.plan.push(Op::Probe { client, keys });
            }
            Some(Call::Promote) => {
                let (client, keys) = (self.client(), self.any_keys(4));
                self.plan.push(Op::Promote { client, keys });
            }
            Some(Call::Usage) => {
                let client = self.client();
                self.plan.push(Op::Usage { client });
            }
            None => self.odd(),
        }
    }

    fn put(&mut self) {
        let (client, pin) = (self.client(), self.pin());
        let replicas = 1 + u32::from(self.profile.two_copies && self.rng.chance(300));
        let (mut objects, mut total) = (Vec::<Object>::new(), 0);
        for _ in 0..self.count(self.profile.most_put) {
            let live = self.live(|_| true);
            let unfinished = self.with(|idea| *idea == Idea::Unfinished);
            let removed = self.with(|idea| *idea == Idea::Removed);
            let draw = self.below(100);
            // On a pool that evicts, it is unknown whether a key still has its first object, so no key is put twice
            // there.
            let again = self.profile.scene != Scene::Evicting;
            let (key, len) = match (self.one_of(&live), self.one_of(&removed), self.one_of(&unfinished)) {
                (Some((key, len)), ..) if again && draw < 12 => (key, len),
                (Some((key, _)), ..) if again && draw < 24 => (key, self.size()),
                (_, Some((key, _)), _) if draw < 40 => (key, self.size()),
                (.., Some((key, _))) if draw < 48 => (key, self.size()),
                _ => (self.new_key(), self.size()),
            };
            if objects.iter().any(|object| object.key == key) || total + len > self.profile.most_bytes {
                continue;
            }
            total += len;
            let hard = pin == Pin::Hard;
            let idea = self.ideas.entry(key.clone()).or_insert(Idea::Removed);
            if *idea == Idea::Removed {
                *idea = Idea::Live { len, hard };
            }
            let (parts, content) = (self.parts(len), self.content());
            objects.push(Object { key, parts, content });
        }
        if !objects.is_empty() {
            self.plan.push(Op::Put {
                client,
                objects,
                pin,
                replicas,
            });
        }
    }

    fn get(&mut self) {
        let client = self.client();
        let (mut reads, mut total) = (Vec::<Read>::new(), 0);
        for _ in 0..self.count(self.profile.most_put) {
            let live = self.one_of(&self.live(|_| true));
            let other = self.one_of(&self.with(|idea| !matches!(idea, Idea::Live { .. })));
            let draw = self.below(100);
            let (key, len) = match (live, other) {
                (Some((key, len)), _) if draw < 60 => (key, len),
                (Some((key, len)), _) if draw < 70 && len > 1 => (key, 1 + self.below(len - 1)),
                (Some((key, len)), _) if draw < 80 => (key, len + 1 + self.below(len.min(5000))),
                (_, Some((key, _))) if draw < 95 => (key, 1 + self.below(5000)),
                _ => (self.new_key(), 1 + self.below(5000)),
            };
            if reads.iter().any(|read| read.key == key) || total + len > self.profile.most_bytes {
                continue;
            }
            total += len;
            let parts = self.parts(len);
            reads.push(Read { key, parts });
        }
        if !reads.is_empty() {
            self.plan.push(Op::Get { client, reads });
        }
    }

    fn remove(&mut self, most: usize) {
        let (client, keys) = (self.client(), self.any_keys(most));
        for key in &keys {
            if let Some(idea @ Idea::Live { .. }) = self.ideas.get_mut(key) {
                *idea = Idea::Removed;
            }
        }
        self.plan.push(Op::Remove { client, keys });
    }

    fn odd(&mut self) {
        // In turn, so that no seed leaves one out for long.
        let (call, what) = ODD[self.odds % ODD.len()];
        self.odds += 1;
        let (client, mut keys) = (self.client(), self.any_keys(6));
        keys.push(self.new_key());
        keys.sort_unstable();
        keys.dedup();
        let then = Op::Probe {
            client,
            keys: keys.clone(),
        };
        self.plan.push(Op::Odd {
            client,
            call,
            what,
            keys,
        });
        // "A batch that breaks one of these rules is refused whole, and nothing of it is done."
        self.plan.push(then);
    }

    fn abandon(&mut self) {
        self.abandons += 1;
        let key = self.new_key();
        self.ideas.insert(key.clone(), Idea::Unfinished);
        let bytes = 1 + self.rng.below(200_000);
        self.plan.push(Op::Abandon { key, bytes });
    }

    fn sweep(&mut self) {
        let client = 0;
        let all: Vec<_> = self.ideas.keys().cloned().collect();
        self.plan.push(Op::Probe {
            client,
            keys: all.clone(),
        });
        for (key, len) in self.live(|_| true) {
            let parts = vec![len];
            let reads = vec![Read { key, parts }];
            self.plan.push(Op::Get { client, reads });
        }
        self.plan.push(Op::Usage { client });
        self.plan.push(Op::Remove {
            client: 1,
            keys: all.clone(),
        });
        self.plan.push(Op::Probe { client, keys: all });
        self.plan.push(Op::Usage { client });
    }
}
