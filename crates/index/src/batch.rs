//! Intents in batches: read what is needed, decide each by itself, write as many as fit at once.
//!
//! A transaction is all or nothing, but a batch is not: if a record has changed under one item, all are read again and
//! decided again; the one that lost gets its own error then, and the others go on. Decisions come from
//! `holdfast-custody`, so what is refused there is refused here, whatever the timing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use holdfast_core::{Deadline, Error, Result};
use holdfast_custody::{Live, Reserved, Retired, Tick, Version};

use crate::index::KvIndex;
use crate::kv::{Applied, Condition, Entry, Read, Write};
use crate::layout::{decode_live, decode_reserved, decode_retired};
use crate::session::{Sender, Session};
use crate::types::Versioned;

/// Room in every transaction for moving credits: free bytes, a few accounts, and those who wait.
pub(crate) const CREDIT_OPERATIONS: usize = 24;

/// Room in every transaction for what is not about its items: the slot, the session, the clock, credits.
const OTHER_BYTES: usize = 64 * 1024;

/// What was read for a batch.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    entries: HashMap<String, Entry>,
    /// Records that the caller had seen before; used for the first try only.
    seen: HashMap<String, Versioned<Live>>,
    /// Whether nothing was read: a refusal that follows from this is no refusal yet.
    guess: bool,
    /// The shared clock.
    pub(crate) tick: Tick,
    /// When the shared clock was set to that: deadlines hold on condition that it still is.
    clock: Option<Version>,
    /// One or two who wait for credits, and their places in line; read only where credits come back.
    pub(crate) wants: Vec<(usize, Entry)>,
}

impl Loaded {
    pub(crate) fn with_seen(seen: HashMap<String, Versioned<Live>>) -> Self {
        Self {
            seen,
            ..Self::default()
        }
    }

    fn set_clock(&mut self, (tick, version): (Tick, Version)) {
        (self.tick, self.clock) = (tick, Some(version));
    }

    pub(crate) fn with_entry(mut self, entry: Entry) -> Self {
        self.entries.insert(entry.key.clone(), entry);
        self
    }

    pub(crate) fn add(&mut self, entries: Vec<Vec<Entry>>) {
        self.entries
            .extend(entries.into_iter().flatten().map(|entry| (entry.key.clone(), entry)));
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(crate) fn reserved(&self, key: &str) -> Result<Option<Versioned<Reserved>>> {
        self.decoded(key, decode_reserved)
    }

    pub(crate) fn retired(&self, key: &str) -> Result<Option<Versioned<Retired>>> {
        self.decoded(key, decode_retired)
    }

    pub(crate) fn live(&self, key: &str) -> Result<Option<Versioned<Live>>> {
        match self.seen.get(key) {
            Some(seen) => Ok(Some(seen.clone())),
            None => self.decoded(key, decode_live),
        }
    }

    fn decoded<T>(&self, key: &str, decode: impl Fn(&Entry) -> Result<T>) -> Result<Option<Versioned<T>>> {
        let entry = self.entries.get(key);
        entry
            .map(|entry| {
                Ok(Versioned {
                    record: decode(entry)?,
                    version: entry.version,
                })
            })
            .transpose()
    }
}

/// What is to be done for one item.
pub(crate) struct Decision<T> {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) writes: Vec<Write>,
    /// What the caller gets, once the version is known.
    pub(crate) done: Box<dyn FnOnce(Version) -> T + Send>,
}

impl<T> Decision<T> {
    /// How many bytes it takes of a transaction.
    fn bytes(&self) -> usize {
        let conditions = self.conditions.iter().map(|condition| match condition {
            Condition::Unchanged(key, _) | Condition::Absent(key) | Condition::Present(key) => key.len(),
        });
        let writes = self.writes.iter().map(|write| match write {
            Write::Put { key, value, .. } => key.len() + value.len(),
            Write::Delete(key) => key.len(),
        });
        conditions.chain(writes).sum()
    }
}

/// One kind of intent.
pub(crate) struct Intent<'a, Item, T> {
    pub(crate) operation: &'static str,
    /// The keys that must be read to decide an item.
    pub(crate) keys: &'a (dyn Fn(&Item) -> Vec<String> + Sync),
    /// Decides one item.
    pub(crate) decide: &'a (dyn Fn(&Item, &Loaded) -> Result<Decision<T>> + Sync),
    /// Whether deadlines are set, so the shared clock must not have moved in between.
    pub(crate) sets_deadlines: bool,
    /// What a transaction needs besides what its items need: the credits that they spend or give back together.
    pub(crate) credits: Option<&'a CreditsOf<'a, Item>>,
    /// What must be read for `credits`, besides who waits.
    pub(crate) credit_keys: Option<&'a CreditKeysOf<'a>>,
}

/// The credits that some items of a batch move together.
pub(crate) type CreditsOf<'a, Item> = dyn Fn(&[&Item], &Loaded) -> Result<Moved> + Sync + 'a;

/// The credit keys that must be read too, as they follow from what was read before.
pub(crate) type CreditKeysOf<'a> = dyn Fn(&Loaded) -> Result<Vec<String>> + Sync + 'a;

/// Conditions and writes that move credits.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) writes: Vec<Write>,
}

impl KvIndex {
    /// Runs an intent for every item. One result per item, in order.
    pub(crate) async fn batch<Item: Sync, T: Send>(
        &self,
        session: &Session,
        items: &[Item],
        intent: Intent<'_, Item, T>,
        seen: Option<Loaded>,
        deadline: Deadline,
    ) -> Vec<Result<T>> {
        let mut results: Vec<Option<Result<T>>> = items.iter().map(|_| None).collect();
        let mut seen = seen;
        let mut tries = 0_u32;
        loop {
            let open: Vec<usize> = (0..items.len()).filter(|at| results[*at].is_none()).collect();
            if open.is_empty() {
                break;
            }
            if deadline.passed(self.clock()) {
                let error = Error::unavailable(
                    intent.operation,
                    "other changes to the same samples kept coming first until the deadline",
                );
                open.iter().for_each(|at| results[*at] = Some(Err(error.clone())));
                break;
            }
            if tries > 0 {
                // Somebody else was faster. A random pause keeps two who collide from doing so for ever.
                let most = 1_u64 << tries.min(5);
                tokio::time::sleep(Duration::from_micros(self.rng().below(200 * most))).await;
            }
            tries += 1;
            let loaded = match self.load(session, items, &open, &intent, seen.take(), deadline).await {
                Ok(loaded) => loaded,
                Err(error) => {
                    open.iter().for_each(|at| results[*at] = Some(Err(error.clone())));
                    break;
                }
            };
            self.write(session, items, &open, &intent, &loaded, &mut results, deadline)
                .await;
        }
        let missing = || Err(Error::internal(intent.operation, "an item was left without a result"));
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(missing))
            .collect()
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
        let mut keys: Vec<String> = open.iter().flat_map(|at| (intent.keys)(&items[*at])).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut entries = HashMap::with_capacity(keys.len());
        for chunk in keys.chunks(self.kv().limits().operations.saturating_sub(2).max(1)) {
            let mut reads: Vec<Read> = chunk.iter().cloned().map(Read::Key).collect();
            reads.push(Read::Key(self.layout().clock()));
            reads.push(Read::Key(self.layout().alive(session.id())));
            let mut snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            if snapshot.entries.pop().is_none_or(|alive| alive.is_empty()) {
                return Err(session.fenced(intent.operation));
            }
            if let Some(clock) = snapshot.entries.pop() {
                self.note_tick(clock.first())?;
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
            ..Loaded::default()
        };
        loaded.set_clock(self.known_clock(deadline).await?);
        if let Some(credit_keys) = intent.credit_keys {
            let keys = credit_keys(&loaded)?;
            self.load_credits(keys, &mut loaded, deadline).await?;
        }
        Ok(loaded)
    }

    #[expect(clippy::too_many_arguments, reason = "one round of a batch")]
    async fn write<Item, T>(
        &self,
        session: &Session,
        items: &[Item],
        open: &[usize],
        intent: &Intent<'_, Item, T>,
        loaded: &Loaded,
        results: &mut [Option<Result<T>>],
        deadline: Deadline,
    ) {
        let for_credits = if intent.credits.is_some() { CREDIT_OPERATIONS } else { 0 };
        let most = self.kv().limits().operations - Sender::OVERHEAD - 1 - for_credits;
        let mut round: Vec<(usize, Decision<T>)> = Vec::new();
        let most_bytes = self.kv().limits().bytes.saturating_sub(OTHER_BYTES);
        let (mut conditions, mut writes, mut bytes) = (0, 0, 0);
        let mut touched = HashSet::new();
        for (place, at) in open.iter().enumerate() {
            match (intent.decide)(&items[*at], loaded) {
                // It follows from what was believed; what is there has yet to be looked at.
                Err(_) if loaded.guess => {}
                Err(error) => results[*at] = Some(Err(error)),
                Ok(decision) if decision.bytes() > most_bytes => {
                    results[*at] = Some(Err(Error::invalid(
                        intent.operation,
                        "one sample has more bytes than a transaction holds; shorten its description",
                    )
                    .with("bytes", decision.bytes())
                    .with("limit", most_bytes)));
                }
                Ok(decision) if decision.conditions.len() > most || decision.writes.len() > most => {
                    results[*at] = Some(Err(Error::invalid(
                        intent.operation,
                        "one sample needs more than a transaction holds; use fewer groups",
                    )));
                }
                // Nothing to change: nothing to send.
                Ok(decision) if decision.conditions.is_empty() && decision.writes.is_empty() => {
                    results[*at] = Some(Ok((decision.done)(Version::default())));
                }
                // Two items of one batch about the same record: the second waits for what the first leaves behind.
                Ok(decision) if decision.writes.iter().any(|write| touched.contains(write.key())) => {}
                Ok(decision) => {
                    touched.extend(decision.writes.iter().map(|write| write.key().to_owned()));
                    if conditions + decision.conditions.len() > most
                        || writes + decision.writes.len() > most
                        || bytes + decision.bytes() > most_bytes
                    {
                        self.send(
                            session,
                            items,
                            intent,
                            loaded,
                            std::mem::take(&mut round),
                            results,
                            deadline,
                        )
                        .await;
                        (conditions, writes, bytes) = (0, 0, 0);
                    }
                    bytes += decision.bytes();
                    conditions += decision.conditions.len();
                    writes += decision.writes.len();
                    round.push((*at, decision));
                }
            }
            if place + 1 == open.len() && !round.is_empty() {
                self.send(
                    session,
                    items,
                    intent,
                    loaded,
                    std::mem::take(&mut round),
                    results,
                    deadline,
                )
                .await;
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one transaction of a batch")]
    async fn send<Item, T>(
        &self,
        session: &Session,
        items: &[Item],
        intent: &Intent<'_, Item, T>,
        loaded: &Loaded,
        round: Vec<(usize, Decision<T>)>,
        results: &mut [Option<Result<T>>],
        deadline: Deadline,
    ) {
        let mut conditions = Vec::new();
        let mut writes = Vec::new();
        let mut done = Vec::with_capacity(round.len());
        for (at, decision) in round {
            conditions.extend(decision.conditions);
            writes.extend(decision.writes);
            done.push((at, decision.done));
        }
        if intent.sets_deadlines {
            let set = |version| Condition::Unchanged(self.layout().clock(), version);
            conditions.extend(loaded.clock.map(set));
        }
        if let Some(credits) = intent.credits {
            let these: Vec<&Item> = done.iter().map(|(at, _)| &items[*at]).collect();
            match credits(&these, loaded) {
                Ok(moved) => {
                    conditions.extend(moved.conditions);
                    writes.extend(moved.writes);
                }
                Err(error) => {
                    done.iter().for_each(|(at, _)| results[*at] = Some(Err(error.clone())));
                    return;
                }
            }
        }
        match self
            .sender()
            .transact(intent.operation, session, conditions, writes, deadline)
            .await
        {
            Ok(Applied::Yes(version)) => {
                for (at, done) in done {
                    results[at] = Some(Ok(done(version)));
                }
            }
            // Read again, decide again. That the session has ended, if that is why, is noticed there.
            Ok(Applied::No) => {}
            Err(error) => done.iter().for_each(|(at, _)| results[*at] = Some(Err(error.clone()))),
        }
    }
}
