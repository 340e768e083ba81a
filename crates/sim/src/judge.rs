//! The judge: sees every transaction at the moment at which etcd applies it, every answer that a caller gets, and what
//! reaches the engine; and says what should not have been.
//!
//! | what | when |
//! |---|---|
//! | LC1, LC2, LC8, LC9, tokens that acknowledge (LC4), commits without a reservation | each transaction, for the samples that it touches |
//! | lists, claims, grant lists (`Records::are_consistent`), LC5, the quarantine | every so many transactions, and at the end |
//! | FS2: a committed sample has all its objects; FS4: a freed one has none | each transaction |
//! | LC3: nothing is removed that somebody may read; FS3: no key is put twice | each engine call |
//! | FS1: bytes; LC7: what was put is there, what was refused is not; answers that say what happened | each answer |
//! | LC6: nothing lingers | at the end |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tensorhold_core::{Error, ErrorKind, Generation, ObjectKey, Retry, SampleId, StoreId};
use tensorhold_custody::{GroupName, Lease, Live, Progress, Reason, Retired, Token, Version, invariants};
use tensorhold_features::{Stored, TensorOut, object_keys};
use tensorhold_index::store::{Entry, Transaction, Write};
use tensorhold_index::testing::Records;
use tensorhold_index::{Record, SampleRecord, SampleRef, Stage};

use crate::world::Outside;

/// How many transactions pass between two looks at everything.
const LOOK_EVERY: u64 = 64;
/// More than these are not worth reading.
const MOST_WRONG: usize = 12;

macro_rules! states {
    ($($name:ident $says:literal;)*) => {
        /// A state that a run should reach now and then.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum State {
            $(#[doc = $says] $name,)*
        }

        impl State {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// What it is, in words.
            pub(crate) fn says(self) -> &'static str {
                match self {
                    $(Self::$name => $says,)*
                }
            }
        }
    };
}

states! {
    Committed "committed";
    Ahead "committed under a reservation made ahead";
    Superseded "superseded";
    Abandoned "a reservation was abandoned";
    Consumed "consumed";
    Aborted "aborted";
    Lost "declared lost";
    DeadLetter "a dead letter";
    Requeued "a dead letter was put back";
    Reopened "reopened for another epoch";
    Leased "leased for a group";
    Read "leased by a reader";
    Renewed "a lease was prolonged";
    HandedBack "a lease was handed back or taken back";
    NeverTaken "a lease went back as if never taken";
    DeadGroup "a group was out of attempts";
    RetiredWithReaders "retired while somebody read";
    FreeFailed "removing objects failed";
    PutUnclear "a put ended unclear";
    PutRefused "a put was refused";
    PutFull "a put found no room or no budget";
    Got "bytes were got";
    GotLater "bytes were the same a while later";
    GetRefused "a get was refused";
    GetCorrupt "a get found wrong bytes, and said so";
    GetGone "a get found no bytes";
    Fenced "an answer was fenced";
    AckUnclear "an ack ended unclear";
    NothingReady "a take found nothing";
    LateObject "an object came back after its sample was freed";
    Orphan "an audit removed orphans";
    Budget "a store with a budget";
    Waits "a process waited for budget";
    SessionLost "a process lost its session";
}

/// What one put writes: its number names its tensors.
pub(crate) type PutNumber = u64;

/// An answer to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Ack,
    Nack,
}

#[derive(Debug)]
struct Grant {
    group: Option<GroupName>,
    /// When it ended, in transactions.
    ended: Option<u64>,
}

/// What is known of everything that happened.
#[derive(Debug)]
pub(crate) struct Judge {
    store: StoreId,
    /// Transactions so far.
    pub(crate) now: u64,
    /// Whether the store has checksums.
    pub(crate) sums: bool,
    records: BTreeMap<String, SampleRecord>,
    latest: BTreeMap<SampleId, Generation>,
    /// What each committed generation consists of.
    committed: BTreeMap<SampleRef, PutNumber>,
    became: BTreeMap<PutNumber, SampleRef>,
    refused: BTreeMap<PutNumber, String>,
    grants: BTreeMap<(SampleRef, Token), Grant>,
    asked: BTreeSet<(SampleRef, Token)>,
    acked: BTreeSet<(SampleRef, Token)>,
    denied: BTreeSet<(SampleRef, Token)>,
    objects: BTreeMap<ObjectKey, SampleRef>,
    /// Which process put each object.
    writers: BTreeMap<ObjectKey, u64>,
    strays: BTreeSet<u64>,
    /// Whether memory of the engine was lost.
    loses: bool,
    states: BTreeMap<State, u64>,
    pub(crate) wrong: Vec<String>,
}

/// The number of the put that a description is of.
fn put_of(description: Option<&Arc<[u8]>>) -> Option<PutNumber> {
    let text = String::from_utf8_lossy(description?).into_owned();
    text.split('"').find_map(put_of_name)
}

/// The number of the put that a tensor's name is of.
fn put_of_name(name: &str) -> Option<PutNumber> {
    name.strip_prefix('t')?.split_once('.')?.0.parse().ok()
}

/// The bytes of a tensor: its name says what they are.
pub(crate) fn pattern(name: &str, len: usize) -> Vec<u8> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut state = seed | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(next).collect()
}

fn live_of(records: &[SampleRecord]) -> Option<&Live> {
    records.iter().find_map(|found| match &found.record {
        Record::Live(live) => Some(live),
        _ => None,
    })
}

fn retired_of(records: &[SampleRecord], generation: Generation) -> Option<&Retired> {
    records.iter().find_map(|found| match &found.record {
        Record::Retired(retired) if found.sample.generation == generation => Some(retired),
        _ => None,
    })
}

impl Judge {
    pub(crate) fn new(store: StoreId) -> Self {
        Self {
            store,
            now: 0,
            sums: true,
            records: BTreeMap::new(),
            latest: BTreeMap::new(),
            committed: BTreeMap::new(),
            became: BTreeMap::new(),
            refused: BTreeMap::new(),
            grants: BTreeMap::new(),
            asked: BTreeSet::new(),
            acked: BTreeSet::new(),
            denied: BTreeSet::new(),
            objects: BTreeMap::new(),
            writers: BTreeMap::new(),
            strays: BTreeSet::new(),
            loses: false,
            states: BTreeMap::new(),
            wrong: Vec::new(),
        }
    }

    pub(crate) fn reach(&mut self, state: State) {
        *self.states.entry(state).or_default() += 1;
    }

    /// How often each state was reached.
    pub(crate) fn states(&self) -> impl Iterator<Item = (State, u64)> {
        State::ALL
            .iter()
            .map(|state| (*state, self.states.get(state).copied().unwrap_or(0)))
    }

    pub(crate) fn blame(&mut self, what: String) {
        if self.wrong.len() < MOST_WRONG {
            self.wrong.push(what);
        }
    }

    /// Memory of the engine was lost: samples may be, too.
    pub(crate) fn memory_died(&mut self) {
        self.loses = true;
    }

    /// This process does not know what becomes of what it has begun.
    pub(crate) fn strayed(&mut self, process: u64) {
        self.strays.insert(process);
    }

    // Transactions.

    /// etcd has applied a transaction.
    pub(crate) fn committed(&mut self, outside: &Outside, process: u64, transaction: &Transaction, version: Version) {
        self.now += 1;
        let mut touched: BTreeMap<SampleId, (Vec<SampleRecord>, Vec<SampleRecord>)> = BTreeMap::new();
        for write in &transaction.writes {
            if let Some(before) = self.records.remove(write.key()) {
                touched.entry(before.sample.sample.clone()).or_default().0.push(before);
            }
            let Write::Put { key, value, .. } = write else { continue };
            let entry = Entry {
                key: key.clone(),
                value: value.clone(),
                version,
            };
            match Records::read_one(&self.store, &entry) {
                Some(Ok(record)) => {
                    let name = record.sample.sample.clone();
                    touched.entry(name).or_default().1.push(record.clone());
                    self.records.insert(key.clone(), record);
                }
                Some(Err(error)) => self.blame(format!("a record that nobody can read was written: {error}")),
                None => {}
            }
        }
        let reserved = |(before, _): &(Vec<SampleRecord>, Vec<SampleRecord>)| {
            let nonce = |found: &SampleRecord| match &found.record {
                Record::Reserved(reserved) => Some(reserved.nonce),
                _ => None,
            };
            before.iter().filter_map(nonce).collect::<Vec<_>>()
        };
        let nonces: Vec<_> = touched.values().flat_map(reserved).collect();
        for (sample, (before, after)) in &touched {
            outside.trace(process, || {
                let show = |records: &[SampleRecord]| {
                    let one = |found: &SampleRecord| {
                        format!("{}@{}{}", found.stage.name(), found.sample.generation, progress(found))
                    };
                    records.iter().map(one).collect::<Vec<_>>().join("+")
                };
                format!("v{version} {sample}: {} -> {}", show(before), show(after))
            });
            self.step(outside, sample, before, after);
            if let Some(live) = live_of(after)
                && live_of(before).is_none_or(|before| before.generation != live.generation)
                && !before.iter().any(|found| found.stage == Stage::Dead)
                && !nonces.contains(&live.nonce)
            {
                self.blame(format!(
                    "{sample} {} was committed without its reservation",
                    live.generation
                ));
            }
        }
        if self.now.is_multiple_of(LOOK_EVERY) {
            self.look(outside);
        }
    }

    /// Looks at everything in etcd.
    pub(crate) fn look(&mut self, outside: &Outside) {
        let records = Records::of_store(&self.store, outside.etcd.dump());
        for checked in [records.are_consistent(), records.budget_is_accounted_for()] {
            if let Err(failure) = checked {
                self.blame(format!("records: {failure}"));
            }
        }
        for aside in records.quarantined() {
            self.blame(format!("a good record is in quarantine: {aside}"));
        }
    }

    fn step(&mut self, outside: &Outside, sample: &SampleId, before: &[SampleRecord], after: &[SampleRecord]) {
        let (old, new) = (live_of(before), live_of(after));
        match (old, new) {
            (Some(old), Some(new)) if old.generation == new.generation => self.change(sample, old, new),
            _ => {
                if let Some(new) = new {
                    self.appear(outside, sample, before, after, new);
                }
                if let Some(old) = old {
                    self.retire(outside, sample, old, new, after);
                }
            }
        }
        if let Some(new) = new {
            if !invariants::attempts_are_exact(new) {
                self.blame(format!("LC9: {sample}: {:?}", new.groups));
            }
            let all = self.records.values().filter(|found| found.sample.sample == *sample);
            let retired = all.filter_map(|found| match &found.record {
                Record::Retired(retired) => Some(retired),
                _ => None,
            });
            if !invariants::retired_is_hidden(Some(new), retired) {
                self.blame(format!("LC2: {sample} {} is live and retired", new.generation));
            }
        }
        self.note_leases(sample, before, after);
        for found in before {
            let is_same =
                |other: &&SampleRecord| other.sample == found.sample && other.record.bytes() == found.record.bytes();
            match (&found.record, after.iter().find(is_same).map(|other| &other.record)) {
                (Record::Retired(_), None) if found.stage != Stage::Dead => self.freed(outside, found),
                (Record::Retired(old), Some(Record::Retired(new))) if new.failed_frees > old.failed_frees => {
                    self.reach(State::FreeFailed);
                }
                (Record::Reserved(_), Some(Record::Retired(_))) => self.reach(State::Abandoned),
                _ => {}
            }
        }
    }

    /// A generation becomes live.
    fn appear(
        &mut self,
        outside: &Outside,
        sample: &SampleId,
        before: &[SampleRecord],
        after: &[SampleRecord],
        new: &Live,
    ) {
        let reference = SampleRef {
            sample: sample.clone(),
            generation: new.generation,
        };
        if retired_of(before, new.generation).is_some() {
            self.reach(State::Requeued);
            return;
        }
        if self.committed.contains_key(&reference) {
            self.blame(format!("LC2: {sample} {} is live again", new.generation));
        }
        if self.latest.get(sample).is_some_and(|latest| *latest >= new.generation) {
            self.blame(format!("LC1: {sample} {} is not the latest generation", new.generation));
        }
        self.latest.insert(sample.clone(), new.generation);
        self.reach(State::Committed);
        if new.reserved_as.is_some() {
            self.reach(State::Ahead);
        }
        let description = after.iter().find_map(|found| found.description.as_ref());
        let Some(put) = put_of(description) else {
            self.blame(format!("{sample} {} has no description", new.generation));
            return;
        };
        if let Some(why) = self.refused.get(&put) {
            self.blame(format!(
                "put {put} of {sample} was refused for good ({why}), and is committed"
            ));
        }
        if let Some(earlier) = self.became.insert(put, reference.clone()) {
            self.blame(format!("put {put} is committed twice: {earlier:?} and {reference:?}"));
        }
        self.committed.insert(reference.clone(), put);
        let bytes = description.map(AsRef::as_ref);
        match object_keys(&self.store, &reference, new.nonce, bytes, "") {
            Err(error) => self.blame(format!("{sample} {}: {error}", new.generation)),
            Ok(keys) => {
                let there: BTreeSet<ObjectKey> = outside.cluster.objects().into_iter().collect();
                let missing: Vec<_> = keys.iter().filter(|key| !there.contains(*key)).collect();
                if !missing.is_empty() && !self.loses {
                    self.blame(format!(
                        "FS2: {sample} {} is committed without {missing:?}",
                        new.generation
                    ));
                }
                self.objects
                    .extend(keys.into_iter().map(|key| (key, reference.clone())));
            }
        }
    }

    /// A live generation is not live any more.
    fn retire(&mut self, outside: &Outside, sample: &SampleId, old: &Live, new: Option<&Live>, after: &[SampleRecord]) {
        let Some(retired) = retired_of(after, old.generation) else {
            self.blame(format!("LC7: {sample} {} vanished", old.generation));
            return;
        };
        if retired.readers.is_empty() != retired.may_be_freed() {
            self.blame(format!("{sample} {} may be freed with readers", old.generation));
        }
        if !retired.readers.is_empty() {
            self.reach(State::RetiredWithReaders);
        }
        if !invariants::commit_is_kept(old.generation, None, true, Some(retired.reason)) {
            self.blame(format!(
                "LC7: {sample} {} was retired as {:?}",
                old.generation, retired.reason
            ));
        }
        if !invariants::consumed_by_all(old, retired) {
            self.blame(format!(
                "LC8: {sample} {} is consumed: {:?}",
                old.generation, old.groups
            ));
        }
        if !invariants::dead_letter_is_exact(old, retired) {
            self.blame(format!(
                "LC9: {sample} {} is {:?}: {:?}",
                old.generation, retired.reason, old.groups
            ));
        }
        match retired.reason {
            Reason::Consumed => {
                for state in &old.groups {
                    if let Progress::Leased(lease) = state.progress {
                        self.acknowledged(sample, old.generation, lease.token);
                    }
                }
                self.reach(State::Consumed);
            }
            Reason::Superseded => {
                if new.is_none_or(|new| new.generation <= old.generation) {
                    self.blame(format!(
                        "LC1: {sample} {} is superseded by nothing later",
                        old.generation
                    ));
                }
                self.reach(State::Superseded);
            }
            Reason::DeadLetter => {
                let groups = retired.letter.as_ref().map(|letter| letter.groups.as_slice());
                for (was, is) in old.groups.iter().zip(groups.unwrap_or_default()) {
                    if let (Progress::Leased(lease), Progress::Acked) = (was.progress, is.progress) {
                        self.acknowledged(sample, old.generation, lease.token);
                    }
                }
                self.reach(State::DeadLetter);
            }
            Reason::Lost => {
                if !self.loses {
                    let there = outside.cluster.objects();
                    let reference = SampleRef {
                        sample: sample.clone(),
                        generation: old.generation,
                    };
                    let missing = self.objects.iter().filter(|(_, of)| **of == reference);
                    let missing = missing.filter(|(key, _)| !there.contains(key)).count();
                    self.blame(format!(
                        "LC7: {sample} {} is lost; {missing} objects are",
                        old.generation
                    ));
                }
                self.reach(State::Lost);
            }
            Reason::Aborted => self.reach(State::Aborted),
            Reason::Abandoned | Reason::Other => {}
        }
    }

    /// A live generation changes.
    fn change(&mut self, sample: &SampleId, old: &Live, new: &Live) {
        let generation = new.generation;
        for (was, is) in old.groups.iter().zip(&new.groups) {
            let said = || format!("{sample} {generation} {}: {was:?} -> {is:?}", is.group);
            match (was.progress, is.progress) {
                (Progress::Waiting, Progress::Waiting)
                | (Progress::Acked, Progress::Acked)
                | (Progress::Dead, Progress::Dead)
                    if was.attempts == is.attempts => {}
                (Progress::Waiting, Progress::Leased(_)) if is.attempts == was.attempts + 1 => {
                    self.reach(State::Leased);
                }
                (Progress::Leased(one), Progress::Leased(two))
                    if one.token == two.token && one.until <= two.until && was.attempts == is.attempts =>
                {
                    if one.until < two.until {
                        self.reach(State::Renewed);
                    }
                }
                (Progress::Leased(_), Progress::Waiting) if is.attempts == was.attempts => {
                    self.reach(State::HandedBack);
                }
                (Progress::Leased(_), Progress::Waiting) if is.attempts + 1 == was.attempts => {
                    self.reach(State::NeverTaken);
                }
                (Progress::Leased(lease), Progress::Acked) if is.attempts == was.attempts => {
                    self.acknowledged(sample, generation, lease.token);
                }
                (Progress::Leased(_), Progress::Dead) if was.attempts == new.max_attempts => {
                    self.reach(State::DeadGroup);
                }
                (Progress::Acked | Progress::Dead, Progress::Waiting) if is.attempts == 0 => {
                    self.reach(State::Reopened);
                }
                _ => self.blame(format!("custody has no such step: {}", said())),
            }
        }
        if (
            old.nonce,
            old.bytes,
            old.paid,
            old.retain,
            old.max_attempts,
            old.producer,
        ) != (
            new.nonce,
            new.bytes,
            new.paid,
            new.retain,
            new.max_attempts,
            new.producer,
        ) || old.groups.len() != new.groups.len()
        {
            self.blame(format!("{sample} {generation} became another: {old:?} -> {new:?}"));
        }
    }

    fn acknowledged(&mut self, sample: &SampleId, generation: Generation, token: Token) {
        let sample = SampleRef {
            sample: sample.clone(),
            generation,
        };
        let lease = (sample, token);
        if !self.asked.contains(&lease) {
            self.blame(format!("LC4: {lease:?} was acknowledged, and nobody asked for it"));
        }
        if self.denied.contains(&lease) {
            self.blame(format!("LC4: {lease:?} was acknowledged after its ack was refused"));
        }
        if !self.acked.insert(lease.clone()) {
            self.blame(format!("LC4: {lease:?} was acknowledged twice"));
        }
    }

    /// Leases that come and go.
    fn note_leases(&mut self, sample: &SampleId, before: &[SampleRecord], after: &[SampleRecord]) {
        let leases = |records: &[SampleRecord]| {
            let of_record = |found: &SampleRecord| {
                let generation = found.sample.generation;
                let leases: Vec<(Generation, Lease)> = found
                    .record
                    .leases()
                    .into_iter()
                    .map(|lease| (generation, lease))
                    .collect();
                leases
            };
            records.iter().flat_map(of_record).collect::<Vec<_>>()
        };
        let (old, new) = (leases(before), leases(after));
        let has = |all: &[(Generation, Lease)], one: &(Generation, Lease)| {
            all.iter().any(|other| other.0 == one.0 && other.1.token == one.1.token)
        };
        for lease in new.iter().filter(|lease| !has(&old, lease)) {
            let reference = SampleRef {
                sample: sample.clone(),
                generation: lease.0,
            };
            let of_group = live_of(after).and_then(|live| {
                let is_it =
                    |progress: Progress| matches!(progress, Progress::Leased(held) if held.token == lease.1.token);
                live.groups
                    .iter()
                    .find(|state| is_it(state.progress))
                    .map(|state| state.group.clone())
            });
            if of_group.is_none() {
                self.reach(State::Read);
            }
            if live_of(after).is_none_or(|live| live.generation != lease.0) {
                self.blame(format!("LC2: {reference:?} was leased, and is not live"));
            }
            let grant = Grant {
                group: of_group,
                ended: None,
            };
            let again = self.grants.insert((reference.clone(), lease.1.token), grant);
            if again.is_some_and(|grant| grant.group.is_some()) {
                self.blame(format!(
                    "LC4: token {} of {reference:?} was given out twice",
                    lease.1.token
                ));
            }
        }
        for lease in old.iter().filter(|lease| !has(&new, lease)) {
            let reference = SampleRef {
                sample: sample.clone(),
                generation: lease.0,
            };
            if let Some(grant) = self.grants.get_mut(&(reference, lease.1.token)) {
                grant.ended = Some(self.now);
            }
        }
    }

    /// A record of a retired generation is gone: its objects are, too.
    fn freed(&mut self, outside: &Outside, found: &SampleRecord) {
        let Record::Retired(retired) = &found.record else {
            return;
        };
        let still = self
            .records
            .values()
            .any(|other| other.sample == found.sample && matches!(other.record, Record::Retired(_) | Record::Live(_)));
        if still {
            return;
        }
        let keys = match &found.description {
            Some(_) => {
                let ours = self.objects.iter().filter(|(_, of)| **of == found.sample);
                ours.map(|(key, _)| key.clone()).collect()
            }
            None => object_keys(&self.store, &found.sample, retired.nonce, None, &retired.plan).unwrap_or_default(),
        };
        let there: BTreeSet<ObjectKey> = outside.cluster.objects().into_iter().collect();
        for key in keys {
            self.objects.remove(&key);
            if there.contains(&key) {
                self.left_behind(&key, "FS4: freed");
            }
        }
    }

    /// An object that no record names any more.
    pub(crate) fn left_behind(&mut self, key: &ObjectKey, what: &str) {
        // A process that was stopped for longer than its session lives writes on, and may be killed before it notices.
        if self.writers.get(key).is_some_and(|writer| self.strays.contains(writer)) {
            self.reach(State::LateObject);
        } else {
            self.blame(format!(
                "{what}, and is still there: {key}, by {:?}",
                self.writers.get(key)
            ));
        }
    }

    // The engine.

    /// A process asks the engine to put these.
    pub(crate) fn put_asked<'a>(&mut self, keys: impl Iterator<Item = &'a ObjectKey>) {
        for key in keys {
            if self.writers.contains_key(key) {
                self.blame(format!("FS3: {key} is put a second time"));
            }
        }
    }

    pub(crate) fn stored(&mut self, process: u64, key: &ObjectKey) {
        self.writers.insert(key.clone(), process);
    }

    /// Objects are about to be removed.
    pub(crate) fn removed(&mut self, outside: &Outside, process: u64, keys: &[ObjectKey]) {
        for key in keys {
            let Some(of) = self.objects.get(key) else { continue };
            let record = self
                .records
                .values()
                .find(|found| found.sample == *of && !matches!(found.record, Record::Reserved(_)));
            let is_safe = match record.map(|found| &found.record) {
                Some(Record::Live(_)) => false,
                Some(Record::Retired(retired)) => retired.may_be_freed(),
                _ => true,
            };
            if !is_safe {
                let stage = record.map(|found| found.stage);
                outside.trace(process, || format!("removes {key} of {stage:?}"));
                self.blame(format!(
                    "LC3: process {process} removes {key} of {of:?}, which is {stage:?}"
                ));
            }
        }
    }

    // Answers.

    /// A put has ended.
    pub(crate) fn put(&mut self, put: PutNumber, answer: &Result<Stored, Error>) {
        match answer {
            Ok(stored) => match self.became.get(&put) {
                Some(reference) if *reference == stored.reference => {}
                other => {
                    let other = format!("{other:?}");
                    self.blame(format!(
                        "put {put} says that it became {:?}; it became {other}",
                        stored.reference
                    ));
                }
            },
            Err(error) if error.retry() == Retry::Ambiguous => self.reach(State::PutUnclear),
            Err(error) => {
                self.reach(if error.kind() == ErrorKind::Capacity {
                    State::PutFull
                } else {
                    State::PutRefused
                });
                if let Some(reference) = self.became.get(&put) {
                    let reference = format!("{reference:?}");
                    self.blame(format!("put {put} was refused, and is {reference}: {error:?}"));
                }
                self.refused.insert(put, error.to_string());
            }
        }
        self.kinds("put", answer.as_ref().err());
    }

    /// Errors that no caller should ever see.
    pub(crate) fn kinds(&mut self, operation: &str, error: Option<&Error>) {
        if let Some(error) = error
            && matches!(
                error.kind(),
                ErrorKind::Internal | ErrorKind::Invalid | ErrorKind::Denied
            )
        {
            self.blame(format!("{operation}: {error:?}"));
        }
    }

    pub(crate) fn took(&mut self, sample: &SampleRef, token: Token, group: Option<&GroupName>) {
        match self.grants.get(&(sample.clone(), token)) {
            Some(grant) if grant.group.as_ref() == group => {}
            grant => {
                let grant = format!("{grant:?}");
                self.blame(format!(
                    "{sample:?} was taken for {group:?} with token {token}: {grant}"
                ));
            }
        }
    }

    pub(crate) fn asks(&mut self, sample: &SampleRef, token: Token) {
        self.asked.insert((sample.clone(), token));
    }

    pub(crate) fn answered(&mut self, asked: Asked, sample: SampleRef, token: Token, error: Option<&Error>) {
        let lease = (sample, token);
        match (asked, error) {
            (Asked::Ack, None) if !self.acked.contains(&lease) => {
                self.blame(format!("LC4: the ack of {lease:?} succeeded, and changed nothing"));
            }
            (Asked::Ack, Some(error)) if error.retry() != Retry::Ambiguous => {
                if self.acked.contains(&lease) {
                    self.blame(format!(
                        "LC4: {lease:?} is acknowledged, and its ack was refused: {error:?}"
                    ));
                }
                self.denied.insert(lease);
            }
            (Asked::Ack, Some(_)) => self.reach(State::AckUnclear),
            (Asked::Nack, None) if self.grants.get(&lease).is_some_and(|grant| grant.ended.is_none()) => {
                self.blame(format!("LC4: {lease:?} was handed back, and is still held"));
            }
            _ => {}
        }
        if error.is_some_and(|error| error.kind() == ErrorKind::Fenced) {
            self.reach(State::Fenced);
        }
        self.kinds("answer", error);
    }

    /// A get that began after so many transactions has ended.
    pub(crate) fn got(&mut self, sample: &SampleRef, token: Token, began: u64, answer: &Result<Vec<TensorOut>, Error>) {
        let grant = self.grants.get(&(sample.clone(), token));
        let ended = grant.and_then(|grant| grant.ended);
        match answer {
            Ok(tensors) => {
                if ended.is_some_and(|ended| ended <= began) {
                    self.blame(format!("LC2: {sample:?} was got under a lease that had ended"));
                }
                let put = self.committed.get(sample).copied();
                if tensors.is_empty() {
                    self.blame(format!("FS1: {sample:?} has no tensors"));
                }
                for tensor in tensors {
                    if put_of_name(tensor.spec.name().as_str()) != put {
                        self.blame(format!(
                            "FS1: {} was got as {sample:?}, which is put {put:?}",
                            tensor.spec
                        ));
                    }
                }
                self.same_bytes(tensors);
                self.reach(State::Got);
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::Corrupt => self.reach(State::GetCorrupt),
                    _ if matches!(error.fact("reason"), Some("lost" | "missing")) => {
                        if !self.loses && ended.is_none() {
                            self.blame(format!("LC7: {sample:?} is held, and gone: {error:?}"));
                        }
                        self.reach(State::GetGone);
                    }
                    _ => self.reach(State::GetRefused),
                }
                self.kinds("get", Some(error));
            }
        }
    }

    /// Whether tensors that were got are what was committed.
    pub(crate) fn same_bytes(&mut self, tensors: &[TensorOut]) {
        for tensor in tensors {
            let bytes = tensor.to_vec();
            if bytes != pattern(tensor.spec.name().as_str(), bytes.len()) || bytes.len() as u64 != tensor.spec.bytes() {
                self.blame(format!("FS1: wrong bytes of {}", tensor.spec));
            }
        }
    }

    // The end.

    /// Dead letters that nobody has dropped.
    pub(crate) fn letters(&self) -> usize {
        self.records.values().filter(|found| found.stage == Stage::Dead).count()
    }

    /// Samples that wait for a group, or that a group has.
    pub(crate) fn unused(&self) -> Vec<String> {
        let records = self.records.values().filter_map(|found| match &found.record {
            Record::Live(live) => Some((found, live)),
            _ => None,
        });
        let open = records.filter(|(_, live)| {
            let is_open = |progress| matches!(progress, Progress::Waiting | Progress::Leased(_));
            live.groups.iter().any(|state| is_open(state.progress))
        });
        open.map(|(found, live)| format!("{:?} {:?}", found.sample, live.groups))
            .collect()
    }
}

fn progress(found: &SampleRecord) -> String {
    let Record::Live(live) = &found.record else {
        return match &found.record {
            Record::Retired(retired) => format!("({:?})", retired.reason),
            _ => String::new(),
        };
    };
    let one = |progress: Progress| match progress {
        Progress::Waiting => "w".to_owned(),
        Progress::Leased(lease) => format!("l{}", lease.token),
        Progress::Acked => "a".to_owned(),
        Progress::Dead => "d".to_owned(),
    };
    let groups: Vec<String> = live.groups.iter().map(|state| one(state.progress)).collect();
    format!("[{} r{}]", groups.join(" "), live.readers.len())
}
