//! What the planner draws with: names, lengths, parts, pins, and its own idea of what is there.

use std::collections::BTreeMap;
use std::time::Duration;

use tensorhold_core::{ObjectKey, Rng, SeededRng};
use tensorhold_engine::Pin;

use crate::op::{CLIENTS, Op};
use crate::profile::{Profile, Scene};

/// What a key's middle may look like: everything that some layer below (JSON, URLs, shells, regexes) could trip over.
const ODD_NAMES: &[&str] = &[
    "a b",
    " lead",
    "trail ",
    "é-ü-日本",
    "🦀",
    "%2C%00%",
    "x&y=z",
    "?q#h",
    "..",
    "a//b",
    "\"q\"",
    "back\\slash",
    "+plus+",
    "^.*$",
    "{}[]()",
    "'",
    ";|<>",
    "~:@=",
];
const ODD_SIZES: &[usize] = &[
    1,
    2,
    3,
    7,
    63,
    64,
    65,
    1000,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    65_537,
    99_999,
    1 << 20,
    (1 << 20) + 1,
    (2 << 20) - 1,
    2 << 20,
];
/// The most parts of one object.
const MOST_PARTS: usize = 5;
/// What the planner believes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idea {
    Live { len: usize, hard: bool },
    Removed,
    Unfinished,
}

/// Draws operations.
pub struct Planner<'a> {
    pub rng: SeededRng,
    pub profile: &'a Profile,
    pub ideas: BTreeMap<ObjectKey, Idea>,
    named: usize,
    contents: u64,
    /// Odd calls so far; each seed begins with another.
    pub odds: usize,
    pub abandons: usize,
    pub plan: Vec<Op>,
}

impl<'a> Planner<'a> {
    pub fn new(seed: u64, profile: &'a Profile) -> Self {
        Self {
            rng: SeededRng::new(seed),
            profile,
            ideas: BTreeMap::new(),
            named: 0,
            contents: seed << 32,
            odds: usize::try_from(seed).expect("a small seed"),
            abandons: 0,
            plan: Vec::new(),
        }
    }

    pub fn below(&self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).expect("small")
    }

    pub fn client(&self) -> usize {
        self.below(CLIENTS)
    }

    pub fn new_key(&mut self) -> ObjectKey {
        self.named += 1;
        let name = match self.below(3) {
            0 if self.profile.odd_keys => ODD_NAMES[self.below(ODD_NAMES.len())],
            1 if self.profile.odd_keys && self.rng.chance(50) => &"long/".repeat(400),
            _ => "k",
        };
        ObjectKey::new(format!("d/{name}/{}", self.named)).expect("a lawful key")
    }

    pub fn content(&mut self) -> u64 {
        self.contents += 1;
        self.contents
    }

    pub fn with(&self, wanted: impl Fn(&Idea) -> bool) -> Vec<(ObjectKey, Idea)> {
        let keys = self.ideas.iter().filter(|(_, idea)| wanted(idea));
        keys.map(|(key, idea)| (key.clone(), *idea)).collect()
    }

    pub fn live(&self, wanted: impl Fn(bool) -> bool) -> Vec<(ObjectKey, usize)> {
        let live = self.ideas.iter().filter_map(|(key, idea)| match idea {
            Idea::Live { len, hard } if wanted(*hard) => Some((key.clone(), *len)),
            _ => None,
        });
        live.collect()
    }

    pub fn live_bytes(&self, hard_only: bool) -> usize {
        self.live(|hard| hard || !hard_only).iter().map(|(_, len)| len).sum()
    }

    pub fn one_of<T: Clone>(&self, items: &[T]) -> Option<T> {
        items.get(self.below(items.len())).cloned()
    }

    pub fn size(&self) -> usize {
        match self.profile.scene {
            Scene::Wide if self.rng.chance(250) => ODD_SIZES[self.below(ODD_SIZES.len())],
            // As many of each order of magnitude as of any other.
            Scene::Wide => {
                let magnitude = 1 << self.below(21);
                magnitude + self.below(magnitude)
            }
            Scene::Filling if self.rng.chance(200) => 1 + self.below(200_000),
            Scene::Filling if self.rng.chance(300) => (4 << 20) + self.below(4 << 20),
            Scene::Filling => (4 + self.below(5)) << 20,
            Scene::Evicting => (2 + self.below(5)) << 19,
        }
    }

    /// Cuts a length into parts.
    pub fn parts(&self, len: usize) -> Vec<usize> {
        // Scattered large objects are rare: they say no more than small ones and cost more.
        let scattered = self.rng.chance(if len > 200_000 { 30 } else { 400 });
        let mut cuts: Vec<_> = match scattered {
            true if len > 1 => (0..self.below(MOST_PARTS)).map(|_| 1 + self.below(len - 1)).collect(),
            _ => Vec::new(),
        };
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// One mostly, sometimes as many as there may be.
    pub fn count(&self, most: usize) -> usize {
        if self.rng.chance(450) { 1 } else { 1 + self.below(most) }
    }

    pub fn pin(&self) -> Pin {
        let soft = Pin::Soft(Duration::from_millis(self.rng.below(5000)));
        match self.profile.scene {
            // Nothing else may be there when the pool is full, or eviction begins.
            Scene::Filling => Pin::Hard,
            Scene::Evicting if self.live_bytes(true) > 12 << 20 || self.rng.chance(850) => {
                if self.rng.chance(150) {
                    soft
                } else {
                    Pin::Evictable
                }
            }
            Scene::Evicting => Pin::Hard,
            Scene::Wide => match self.below(4) {
                0 => Pin::Evictable,
                1 => soft,
                _ => Pin::Hard,
            },
        }
    }

    /// Live and other keys, now and then one twice.
    pub fn any_keys(&mut self, most: usize) -> Vec<ObjectKey> {
        let mut keys = Vec::<ObjectKey>::new();
        for _ in 0..self.count(most) {
            let known = self.one_of(&self.with(|_| true)).map(|(key, _)| key);
            let live = self.one_of(&self.live(|_| true)).map(|(key, _)| key);
            let dead = self
                .one_of(&self.with(|idea| *idea == Idea::Unfinished))
                .map(|(key, _)| key);
            let key = match (live.filter(|_| !self.rng.chance(400)), known, self.one_of(&keys)) {
                _ if dead.is_some() && self.rng.chance(80) => dead.expect("there is one"),
                (Some(key), ..) => key,
                (.., Some(key)) if self.rng.chance(150) => key,
                (_, Some(key), _) if self.rng.chance(800) => key,
                _ => self.new_key(),
            };
            keys.push(key);
        }
        keys
    }
}
