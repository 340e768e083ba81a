//! Intents in batches: read what is needed, decide each item by itself, write as many as fit at once.
//!
//! A transaction is all or nothing, but a batch is not. If a record has changed under one item, the transaction's items
//! are read and decided again; the item that lost the race gets its own error then, and the others are applied.
//! Decisions come from `tensorhold-custody`, so what is refused there is refused here, whatever the timing.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tensorhold_core::{BatchResults, Deadline, Error, Result};
use tensorhold_custody::{Live, Tick, Version};

use crate::record::codec::{Settle, decode_versioned, unreadable_key};
use crate::record::layout::Layout;
use crate::record::refusal::{gone, superseded};
use crate::record::types::{SampleRef, Versioned};
use crate::store::{Condition, Entry, Read, Snapshot, Write};
use crate::txn::TxnCore;
use crate::txn::decision::Decision;
use crate::txn::quarantine::{SetAside, told};
use crate::txn::session::Session;
use crate::txn::transitions::Change;

/// What was read for a batch.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    entries: HashMap<String, Entry>,
    /// Whether nothing was read: decisions are based on what the caller has seen before, and a refusal is not final.
    pub(crate) guess: bool,
    /// The shared clock.
    pub(crate) tick: Tick,
    /// The version at which the shared clock was set to that. Deadlines are written on condition that it is unchanged.
    pub(crate) clock: Option<Version>,
    /// What was read for the quota, if anything.
    pub(crate) quota: Option<Snapshot>,
}

impl Loaded {
    fn set_clock(&mut self, (tick, version): (Tick, Version)) {
        (self.tick, self.clock) = (tick, Some(version));
    }

    pub(crate) fn with_entries(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut loaded = Self::default();
        loaded.add([entries.into_iter().collect()]);
        loaded
    }

    pub(crate) fn add(&mut self, entries: impl IntoIterator<Item = Vec<Entry>>) {
        self.entries
            .extend(entries.into_iter().flatten().map(|entry| (entry.key.clone(), entry)));
    }

    /// A change that a session makes now.
    pub(crate) fn change(&self, session: &Session) -> Change {
        Change {
            by: session.id(),
            tick: self.tick,
            guess: self.guess,
        }
    }

    /// Whether no record is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The record under a key, if there is one.
    pub(crate) fn record<T: Settle>(&self, key: &str) -> Result<Option<Versioned<T>>> {
        self.entries.get(key).map(decode_versioned).transpose()
    }
}

/// The live record of exactly this generation: the one that the caller has `seen`, as long as nothing was read.
pub(crate) fn live_of<'a>(
    operation: &'static str,
    layout: &Layout,
    loaded: &Loaded,
    sample: &SampleRef,
    seen: Option<&'a Versioned<Live>>,
) -> Result<Cow<'a, Versioned<Live>>> {
    let live = match seen.filter(|_| loaded.guess) {
        Some(seen) => Some(Cow::Borrowed(seen)),
        None => loaded.record(&layout.live(&sample.sample))?.map(Cow::Owned),
    };
    match live {
        Some(live) if live.record.generation == sample.generation => Ok(live),
        Some(_) => Err(superseded(operation, sample)),
        None => Err(gone(operation, &sample.sample)),
    }
}

/// One kind of intent.
pub(crate) struct Intent<'a, Item, T> {
    pub(super) operation: &'static str,
    keys: &'a KeysOf<'a, Item>,
    pub(super) decide: &'a Decide<'a, Item, T>,
    pub(super) sets_deadlines: bool,
    pub(super) quota: Option<&'a dyn QuotaChange<Item>>,
}

/// The keys that must be read to decide an item.
type KeysOf<'a, Item> = dyn Fn(&Item) -> Vec<String> + Sync + 'a;

/// Decides one item.
type Decide<'a, Item, T> = dyn Fn(&Item, &Loaded) -> Result<Decision<T>> + Sync + 'a;

impl<'a, Item, T> Intent<'a, Item, T> {
    pub(crate) fn new(operation: &'static str, keys: &'a KeysOf<'a, Item>, decide: &'a Decide<'a, Item, T>) -> Self {
        Self {
            operation,
            keys,
            decide,
            sets_deadlines: false,
            quota: None,
        }
    }

    /// Whether the items set deadlines. Then the shared clock must not have moved in between.
    pub(crate) fn setting_deadlines(mut self, sets_deadlines: bool) -> Self {
        self.sets_deadlines = sets_deadlines;
        self
    }

    /// The quota that the items spend or give back.
    pub(crate) fn moving(mut self, quota: &'a dyn QuotaChange<Item>) -> Self {
        self.quota = Some(quota);
        self
    }
}

/// The quota that the items of one transaction move, in that same transaction.
pub(crate) trait QuotaChange<Item>: Sync {
    /// What must be read to know how much.
    fn reads(&self) -> Vec<Read>;

    /// The conditions and writes to add for these items, if there is room for them. An error becomes the result of all
    /// these items.
    fn move_for(&self, items: &[&Item], loaded: &Loaded, room: QuotaBudget) -> Result<Moved>;

    /// The transaction of the last `move_for` has been applied.
    fn moved(&self, version: Version);

    /// It has not been applied and never will be; or, if `unclear`, its outcome is ambiguous.
    fn not_moved(&self, unclear: bool);
}

/// Operations reserved in every transaction that moves quota: for deposits, and for the processes that wait.
pub(super) const QUOTA_OPERATIONS: usize = 24;

/// What a transaction has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaBudget {
    pub(crate) operations: usize,
    pub(crate) bytes: usize,
}

/// Conditions and writes that move quota.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) writes: Vec<Write>,
}

impl Moved {
    /// Adds more, if there is room. Returns whether there was.
    pub(crate) fn add(&mut self, more: Self, room: &mut QuotaBudget) -> bool {
        let operations = more.conditions.len().max(more.writes.len());
        let bytes: usize = more.conditions.iter().map(Condition::bytes).sum::<usize>()
            + more.writes.iter().map(Write::bytes).sum::<usize>();
        let fits = operations <= room.operations && bytes <= room.bytes;
        if fits {
            room.operations -= operations;
            room.bytes -= bytes;
            self.conditions.extend(more.conditions);
            self.writes.extend(more.writes);
        }
        fits
    }
}

impl TxnCore {
    /// Runs an intent for every item. One result per item, in order.
    pub(crate) async fn batch<Item: Sync, T: Send>(
        &self,
        session: &Session,
        items: &[Item],
        intent: Intent<'_, Item, T>,
        seen: Option<Loaded>,
        deadline: Deadline,
    ) -> Vec<Result<T>> {
        self.batch_told_by(session, items, intent, seen, deadline, deadline)
            .await
    }

    /// As [`TxnCore::batch`], but waits until `told_by` for the outcome of transactions that were sent before the
    /// deadline.
    pub(crate) async fn batch_told_by<Item: Sync, T: Send>(
        &self,
        session: &Session,
        items: &[Item],
        intent: Intent<'_, Item, T>,
        seen: Option<Loaded>,
        deadline: Deadline,
        told_by: Deadline,
    ) -> Vec<Result<T>> {
        let mut results = BatchResults::new(items.len());
        let mut seen = seen;
        let mut tries = 0_u32;
        loop {
            let open = results.open();
            if open.is_empty() {
                break;
            }
            if deadline.passed(self.clock()) {
                let error = Error::unavailable(
                    intent.operation,
                    "other changes to the same samples kept coming first until the deadline",
                );
                open.into_iter().for_each(|at| results.set(at, Err(error.clone())));
                break;
            }
            if tries > 0 {
                // Another process was faster. A random pause keeps two processes from colliding for ever.
                let most = 1_u64 << tries.min(5);
                tokio::time::sleep(Duration::from_micros(self.rng().below(200 * most))).await;
            }
            tries += 1;
            let loaded = match self.load(session, items, &open, &intent, seen.take(), deadline).await {
                Ok(loaded) => loaded,
                Err(error) => {
                    open.into_iter().for_each(|at| results.set(at, Err(error.clone())));
                    break;
                }
            };
            let refused = self
                .pack_and_send(session, items, &open, &intent, &loaded, &mut results, told_by)
                .await;
            self.set_refused_aside(refused, &loaded, &mut results, deadline).await;
        }
        let missing = || Err(Error::internal(intent.operation, "an item has no result: a bug"));
        results.finish(missing)
    }

    /// Quarantines the undecodable records that block these items, so that the items are decided again.
    async fn set_refused_aside<T>(
        &self,
        refused: Vec<(usize, Error)>,
        loaded: &Loaded,
        results: &mut BatchResults<Result<T>>,
        deadline: Deadline,
    ) {
        for (at, error) in refused {
            let entry = unreadable_key(&error).and_then(|key| loaded.entry(key));
            let aside = match entry {
                Some(entry) => self.set_aside(entry, &told(&error), Vec::new(), deadline).await,
                None => Ok(SetAside::InPlace),
            };
            match aside {
                // Another item of the batch may have met the same record, which was then moved by that item.
                Ok(SetAside::Moved | SetAside::Changed) => {}
                Ok(SetAside::InPlace) => results.set(at, Err(error)),
                Err(failed) => results.set(at, Err(failed)),
            }
        }
    }

    async fn load<Item, T>(
        &self,
        session: &Session,
        items: &[Item],
        open: &[usize],
        intent: &Intent<'_, Item, T>,
        seen: Option<Loaded>,
        deadline: Deadline,
    ) -> Result<Loaded> {
        if let Some(mut loaded) = seen {
            loaded.guess = true;
            loaded.set_clock(self.known_clock(deadline).await?);
            return Ok(loaded);
        }
        // In the order in which an item names them: that is the way on which its record moves from key to key. Many items are
        // read in several snapshots. A record that moves meanwhile is then seen before it moves, and the transaction is
        // refused, or where it has moved to. In any other order it may be seen nowhere.
        let mut named = HashSet::new();
        let keys = open.iter().flat_map(|at| (intent.keys)(&items[*at]));
        let keys: Vec<String> = keys.filter(|key| named.insert(key.clone())).collect();
        let mut entries = HashMap::with_capacity(keys.len());
        let mut quota = intent.quota.map(QuotaChange::reads).unwrap_or_default();
        let mut seen_quota = None;
        let most = self
            .txn_store()
            .limits()
            .operations
            .saturating_sub(2 + quota.len())
            .max(1);
        for chunk in keys.chunks(most) {
            let mut reads: Vec<Read> = chunk.iter().cloned().map(Read::Key).collect();
            reads.push(Read::Key(self.layout().clock()));
            reads.push(Read::Key(self.layout().alive(session.id())));
            let records = reads.len();
            reads.append(&mut quota);
            let mut snapshot = self.txn_store().read(&reads, deadline.remaining(self.clock())).await?;
            if reads.len() > records {
                seen_quota = Some(Snapshot {
                    version: snapshot.version,
                    entries: snapshot.entries.split_off(records),
                });
            }
            if snapshot.entries.pop().is_none_or(|alive| alive.is_empty()) {
                return Err(session.fenced(intent.operation));
            }
            if let Some(clock) = snapshot.entries.pop() {
                self.note_tick(clock.first(), snapshot.version)?;
            }
            entries.extend(
                snapshot
                    .entries
                    .into_iter()
                    .flatten()
                    .map(|entry| (entry.key.clone(), entry)),
            );
        }
        let mut loaded = Loaded {
            entries,
            quota: seen_quota,
            ..Loaded::default()
        };
        loaded.set_clock(self.known_clock(deadline).await?);
        Ok(loaded)
    }
}
