//! Where records lie, and what follows from a record.
//!
//! Each record has one home; the lists that are searched (ready, held, to be freed) hold nothing but keys, and which
//! keys there must be follows from the record alone. So a change of a record is: the keys that followed from it before,
//! minus those that follow now, are deleted; the new ones are put. Nothing else ever writes these lists, and an index is
//! consistent when its lists are exactly what follows from its records.
//!
//! | key, under the store's root | what | kept in step by |
//! |---|---|---|
//! | `n/{session}` | the session is alive (vanishes with it) | session |
//! | `z/{session}` | the session existed and is not cleared up yet | session, sweep |
//! | `o/{session}/{slot}` | the last transaction of one slot (vanishes with the session) | every transaction |
//! | `p/{sample}` | [`Reserved`] | reserve, commit, abort |
//! | `s/{sample}` | [`Live`] | commit, lease, ack, … |
//! | `c/{sample}/{generation}` | the producer's description | commit, freed |
//! | `g/{sample}/{generation}` | [`Retired`] with readers | retire, release, sweep |
//! | `f/{sample}/{generation}` | [`Retired`] without readers: to be freed | as above, freed |
//! | `q/{group}/{lane}/{order}/{sample}` | ready for a group | follows from `s` |
//! | `h/{session}/{until}/{sample}/{generation or p}` | held by a session until a tick | follows from `p`, `s`, `g` |
//! | `t` | the shared clock | tick |
//! | `b/budget` | the store's budget in bytes; no such key, no budget | set once |
//! | `b/free` | bytes of the budget that are nobody's | draw, freed, sweep |
//! | `b/a/{session}` | a session's [`Account`](holdfast_custody::Account) | draw, reserve, freed, sweep |
//! | `b/q` | when somebody last began to wait | draw |
//! | `b/w/{order}-{session}` | a session that waits for credits, longest first | draw, freed, sweep |
//!
//! Numbers in keys are sixteen hex digits, so that the order of keys is the order of numbers. Names are escaped.

use std::collections::BTreeSet;
use std::ops::Range;

use holdfast_core::key::{escape, unescape};
use holdfast_core::{Digest, Error, Generation, Result, SampleId, StoreId};
use holdfast_custody::{GroupName, Lease, Live, Progress, Reserved, Retired, SessionId, Tick, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kv::{Entry, Write, prefix};

/// Ready lists are cut into this many lanes, so that consumers do not all reach for the same sample.
pub(crate) const LANES: u64 = 32;

/// The keys of one store.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
}

/// A record in its home, with the list entries that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    pub(crate) lists: BTreeSet<String>,
}

/// Something that a session holds, as a list entry tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) key: String,
    pub(crate) sample: SampleId,
    /// The generation; none for a reservation.
    pub(crate) generation: Option<Generation>,
}

pub(crate) fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record)
        .map_err(|error| Error::internal("index.encode", "a record cannot be written as JSON").caused_by(error))
}

/// Reads a record. Fields that a later release added are passed over, so that releases can work side by side.
pub(crate) fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|error| {
        Error::internal(
            "index.decode",
            "a record cannot be read; was it written by something else?",
        )
        .with("key", &entry.key)
        .caused_by(error)
    })
}

impl Layout {
    pub(crate) fn new(store: &StoreId) -> Self {
        Self {
            root: format!("{}/", escape(store.as_str())),
        }
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> String {
        format!("{}{rest}", self.root)
    }

    pub(crate) fn clock(&self) -> String {
        self.key(format_args!("t"))
    }

    pub(crate) fn budget(&self) -> String {
        self.key(format_args!("b/budget"))
    }

    pub(crate) fn credits_free(&self) -> String {
        self.key(format_args!("b/free"))
    }

    /// Written by whoever begins to wait, so that one who brings credits back finds out that somebody does.
    pub(crate) fn waiting_since(&self) -> String {
        self.key(format_args!("b/q"))
    }

    pub(crate) fn all_accounts(&self) -> Range<String> {
        prefix(self.key(format_args!("b/a/")))
    }

    pub(crate) fn account(&self, session: SessionId) -> String {
        self.key(format_args!("b/a/{:016x}", session.0))
    }

    pub(crate) fn want(&self, order: Version, session: SessionId) -> String {
        self.key(format_args!("b/w/{:016x}-{:016x}", order.0, session.0))
    }

    pub(crate) fn all_wants(&self) -> Range<String> {
        prefix(self.key(format_args!("b/w/")))
    }

    pub(crate) fn alive(&self, session: SessionId) -> String {
        self.key(format_args!("n/{:016x}", session.0))
    }

    pub(crate) fn all_alive(&self) -> Range<String> {
        prefix(self.key(format_args!("n/")))
    }

    pub(crate) fn existed(&self, session: SessionId) -> String {
        self.key(format_args!("z/{:016x}", session.0))
    }

    pub(crate) fn all_existed(&self) -> Range<String> {
        prefix(self.key(format_args!("z/")))
    }

    /// The session that a key of `n/` or `z/` names.
    pub(crate) fn session_of(key: &str) -> Option<SessionId> {
        u64::from_str_radix(key.rsplit('/').next()?, 16).ok().map(SessionId)
    }

    pub(crate) fn slot(&self, session: SessionId, slot: u64) -> String {
        self.key(format_args!("o/{:016x}/{slot:016x}", session.0))
    }

    pub(crate) fn pending(&self, sample: &SampleId) -> String {
        self.key(format_args!("p/{}", escape(sample.as_str())))
    }

    pub(crate) fn live(&self, sample: &SampleId) -> String {
        self.key(format_args!("s/{}", escape(sample.as_str())))
    }

    pub(crate) fn description(&self, sample: &SampleId, generation: Generation) -> String {
        self.key(format_args!("c/{}/{:016x}", escape(sample.as_str()), generation.get()))
    }

    pub(crate) fn retired_with_readers(&self, sample: &SampleId, generation: Generation) -> String {
        self.key(format_args!("g/{}/{:016x}", escape(sample.as_str()), generation.get()))
    }

    pub(crate) fn to_free(&self, sample: &SampleId, generation: Generation) -> String {
        self.key(format_args!("f/{}/{:016x}", escape(sample.as_str()), generation.get()))
    }

    pub(crate) fn all_to_free(&self) -> Range<String> {
        prefix(self.key(format_args!("f/")))
    }

    pub(crate) fn ready_lane(&self, group: &GroupName, lane: u64) -> Range<String> {
        prefix(self.key(format_args!("q/{group}/{lane:02x}/")))
    }

    pub(crate) fn ready(&self, group: &GroupName) -> Range<String> {
        prefix(self.key(format_args!("q/{group}/")))
    }

    /// What a session holds that ends before `tick`; everything for none.
    pub(crate) fn held(&self, session: SessionId, before: Option<Tick>) -> Range<String> {
        let all = prefix(self.key(format_args!("h/{:016x}/", session.0)));
        match before {
            Some(tick) => all.start..self.key(format_args!("h/{:016x}/{:016x}", session.0, tick.0)),
            None => all,
        }
    }

    fn holding(&self, session: SessionId, until: Tick, sample: &SampleId, generation: Option<Generation>) -> String {
        let which = generation.map_or_else(|| "p".to_owned(), |generation| format!("{:016x}", generation.get()));
        self.key(format_args!(
            "h/{:016x}/{:016x}/{}/{which}",
            session.0,
            until.0,
            escape(sample.as_str())
        ))
    }

    fn held_by_leases<'a>(
        &'a self,
        sample: &'a SampleId,
        generation: Generation,
        leases: impl Iterator<Item = &'a Lease> + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        leases.map(move |lease| self.holding(lease.session, lease.until, sample, Some(generation)))
    }

    /// The sample behind a key of the ready list.
    pub(crate) fn ready_sample(key: &str) -> Option<SampleId> {
        SampleId::new(unescape(key.rsplit('/').next()?)?).ok()
    }

    /// What an entry of the held list is about.
    pub(crate) fn parse_holding(key: &str) -> Option<Holding> {
        let mut parts = key.rsplit('/');
        let which = parts.next()?;
        let sample = SampleId::new(unescape(parts.next()?)?).ok()?;
        let generation = if which == "p" {
            None
        } else {
            Some(Generation::new(u64::from_str_radix(which, 16).ok()?)?)
        };
        Some(Holding {
            key: key.to_owned(),
            sample,
            generation,
        })
    }

    /// The sample and generation behind a key of `f/` or `g/`.
    pub(crate) fn parse_retired(key: &str) -> Option<(SampleId, Generation)> {
        let mut parts = key.rsplit('/');
        let generation = Generation::new(u64::from_str_radix(parts.next()?, 16).ok()?)?;
        Some((SampleId::new(unescape(parts.next()?)?).ok()?, generation))
    }

    pub(crate) fn place_reserved(&self, sample: &SampleId, record: &Reserved) -> Result<Placed> {
        let lists = BTreeSet::from([self.holding(record.session, record.until, sample, None)]);
        Ok(Placed {
            key: self.pending(sample),
            value: encode(record)?,
            lists,
        })
    }

    pub(crate) fn place_live(&self, sample: &SampleId, record: &Live) -> Result<Placed> {
        let mut lists: BTreeSet<String> = self
            .held_by_leases(sample, record.generation, record.leases())
            .collect();
        let order = record.generation.get();
        for state in record.groups.iter().filter(|state| state.progress == Progress::Waiting) {
            let lane = lane_of(sample);
            lists.insert(self.key(format_args!(
                "q/{}/{lane:02x}/{order:016x}/{}",
                state.group,
                escape(sample.as_str())
            )));
        }
        Ok(Placed {
            key: self.live(sample),
            value: encode(record)?,
            lists,
        })
    }

    /// A record that was never reserved at a known version cannot be retired: its generation names its home.
    pub(crate) fn place_retired(&self, sample: &SampleId, record: &Retired) -> Result<Placed> {
        let generation = record.generation.ok_or_else(|| {
            Error::internal("index.place", "a retired record has no generation").with("sample", sample)
        })?;
        let key = if record.may_be_freed() {
            self.to_free(sample, generation)
        } else {
            self.retired_with_readers(sample, generation)
        };
        let lists = self.held_by_leases(sample, generation, record.readers.iter()).collect();
        Ok(Placed {
            key,
            value: encode(record)?,
            lists,
        })
    }
}

/// The lane of a sample: spread by its name, because samples that were reserved together have one generation.
fn lane_of(sample: &SampleId) -> u64 {
    let hash = Digest::of(sample.as_str().as_bytes()).as_u128();
    u64::try_from(hash % u128::from(LANES)).unwrap_or(0)
}

/// The writes that turn what was there into what is to be there.
pub(crate) fn writes(before: &[Placed], after: &[Placed]) -> Vec<Write> {
    let keys = |placed: &[Placed]| -> BTreeSet<String> {
        placed
            .iter()
            .flat_map(|placed| placed.lists.iter().chain([&placed.key]))
            .cloned()
            .collect()
    };
    let (old, new) = (keys(before), keys(after));
    let mut writes: Vec<Write> = old.difference(&new).cloned().map(Write::Delete).collect();
    writes.extend(
        after
            .iter()
            .map(|placed| Write::put(placed.key.clone(), placed.value.clone())),
    );
    let homes: BTreeSet<&String> = after.iter().map(|placed| &placed.key).collect();
    writes.extend(
        new.difference(&old)
            .filter(|key| !homes.contains(key))
            .map(|key| Write::put(key.clone(), Vec::new())),
    );
    writes
}

/// Reads a record and puts in the versions that it could not know when it was written.
pub(crate) fn decode_reserved(entry: &Entry) -> Result<Reserved> {
    let mut record: Reserved = decode(entry)?;
    record.settle(entry.version);
    Ok(record)
}

/// As [`decode_reserved`].
pub(crate) fn decode_live(entry: &Entry) -> Result<Live> {
    let mut record: Live = decode(entry)?;
    record.settle(entry.version);
    Ok(record)
}

/// As [`decode_reserved`].
pub(crate) fn decode_retired(entry: &Entry) -> Result<Retired> {
    let mut record: Retired = decode(entry)?;
    record.settle(entry.version);
    Ok(record)
}

/// The version that a placed record will have, once known, goes into the record itself.
pub(crate) fn settled_live(mut record: Live, version: Version) -> Live {
    record.settle(version);
    record
}
