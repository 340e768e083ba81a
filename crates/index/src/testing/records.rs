//! The keys and records under an index, and whether they are consistent.

use std::collections::{BTreeMap, BTreeSet};

use tensorhold_core::key::unescape;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{Result, SampleId, StoreId};
use tensorhold_custody::{Live, Reserved, ReservedAs, Retired, SessionId, Tick, invariants};

use super::client::CALL;
use super::context::Context;
use crate::SampleRecord;
use crate::ops::records::record_of;
use crate::record::codec::{decode, decode_versioned};
use crate::record::grants::{GrantList, Holding};
use crate::record::layout::Layout;
use crate::record::refusal::owner;
use crate::record::types::Stage;
use crate::store::{Entry, Read, prefix};

/// Every key of a store, read in one snapshot.
#[derive(Debug)]
pub struct Records {
    root: String,
    layout: Layout,
    entries: BTreeMap<String, Entry>,
}

impl Records {
    /// Reads all keys of the case's store.
    pub(super) async fn read(context: &Context) -> CaseResult<Self> {
        let store = context.harness().store();
        let clock = Layout::new(store).clock();
        let root = clock.strip_suffix('t').unwrap_or(&clock);
        let txn_store = context.harness().txn_store().await?;
        let all = Read::Range {
            keys: prefix(root),
            limit: 100_000,
            keys_only: false,
        };
        let snapshot = txn_store.read(&[all], CALL).await?;
        Ok(Self::of_store(store, snapshot.entries.into_iter().flatten()))
    }

    /// The keys of a store, out of all that there are at one moment.
    pub fn of_store(store: &StoreId, entries: impl IntoIterator<Item = Entry>) -> Self {
        let layout = Layout::new(store);
        let clock = layout.clock();
        let root = clock.strip_suffix('t').unwrap_or(&clock).to_owned();
        let ours = entries.into_iter().filter(|entry| entry.key.starts_with(&root));
        Self {
            entries: ours.map(|entry| (entry.key.clone(), entry)).collect(),
            layout,
            root,
        }
    }

    /// The record in an entry; none if the entry holds something else.
    pub fn read_one(store: &StoreId, entry: &Entry) -> Option<Result<SampleRecord>> {
        let layout = Layout::new(store);
        let mut stages = Stage::ALL.into_iter();
        let stage = stages.find(|stage| layout.all_of(*stage).contains(&entry.key))?;
        Some(record_of(stage, entry))
    }

    /// Records that are in quarantine, and why.
    pub fn quarantined(&self) -> Vec<String> {
        let shown = |entry: &Entry| format!("{}: {}", entry.key, String::from_utf8_lossy(&entry.value));
        let aside = format!("{}x/i/", self.root);
        let entries = self.entries.values().filter(|entry| entry.key.starts_with(&aside));
        entries.map(shown).collect()
    }

    /// LC5, of a store with a budget.
    pub fn budget_is_accounted_for(&self) -> CaseResult {
        let Some(budget) = self.entries.get(&self.layout.budget()) else {
            return Ok(());
        };
        let deposits = self.layout.deposits();
        let deposits = self.entries.range(deposits).map(|(_, entry)| decode::<u64>(entry));
        let deposits: Vec<u64> = deposits.collect::<Result<_>>()?;
        let mut paid = Vec::new();
        for entry in self.of('p') {
            paid.push(decode_versioned::<Reserved>(entry)?.record.paid);
        }
        for entry in self.of('s') {
            paid.push(decode_versioned::<Live>(entry)?.record.paid);
        }
        for entry in "glfd".chars().flat_map(|kind| self.of(kind)) {
            paid.push(decode_versioned::<Retired>(entry)?.record.paid);
        }
        let budget = decode(budget)?;
        ensure!(
            invariants::budget_is_accounted_for(budget, deposits.iter().copied(), paid.iter().copied()),
            "LC5 does not hold: budget {budget}, deposits {deposits:?}, paid {paid:?}"
        );
        Ok(())
    }

    /// The keys of one kind: `s` for live samples, and so on, as in the table of the layout.
    fn of(&self, kind: char) -> impl Iterator<Item = &Entry> {
        let start = format!("{}{kind}/", self.root);
        self.entries.values().filter(move |entry| entry.key.starts_with(&start))
    }

    /// The keys that do not concern sessions or the clock: none when everything was freed. A grant list belongs to
    /// its session, and vanishes with it or when it is due.
    pub fn left_over(&self) -> Vec<&str> {
        "psglfqka"
            .chars()
            .flat_map(|kind| self.of(kind).map(|entry| entry.key.as_str()))
            .collect()
    }

    /// The grant lists.
    pub(super) fn notes(&self) -> Vec<&str> {
        self.of('h').map(|entry| entry.key.as_str()).collect()
    }

    /// How many sessions are not cleared yet.
    pub(super) fn sessions(&self) -> usize {
        self.of('z').count()
    }

    /// The live records.
    pub(super) fn live(&self) -> CaseResult<Vec<Live>> {
        let live = self.of('s').map(decode_versioned::<Live>);
        Ok(live.map(|live| Ok(live?.record)).collect::<Result<_>>()?)
    }

    /// Asserts that the ready lists are exactly what follows from the records, and that every lease has a grant list.
    pub fn are_consistent(&self) -> CaseResult {
        let mut lists = BTreeSet::new();
        let mut held = Vec::new();
        let mut claims = BTreeSet::new();
        let mut owners = BTreeSet::new();
        let at_home = |entry: &Entry, home: String| -> CaseResult {
            ensure_eq!(entry.key, home, "the home of a record");
            Ok(())
        };
        for entry in self.of('p') {
            let (sample, record) = (name(&entry.key)?, decode_versioned::<Reserved>(entry)?.record);
            at_home(entry, self.layout.pending(&sample))?;
            claims.extend(record.claims.iter().map(|key| (self.layout.claim(key), sample.clone())));
            held.push((record.session, record.until, sample, None));
        }
        for entry in self.of('s') {
            let (sample, live) = (name(&entry.key)?, decode_versioned::<Live>(entry)?);
            let record = live.record;
            ensure!(invariants::attempts_are_exact(&record), "LC9 does not hold: {record:?}");
            ensure!(
                live.description.is_some(),
                "a live sample without a description: {}",
                entry.key
            );
            at_home(entry, self.layout.live(&sample))?;
            lists.extend(self.layout.ready_entries(&sample, &record, None));
            claims.extend(record.claims.iter().map(|key| (self.layout.claim(key), sample.clone())));
            owners.extend(self.owner(&sample, record.reserved_as.as_ref()));
            let of_leases = record.leases().map(|lease| (lease.session, lease.until));
            held.extend(of_leases.map(|(who, until)| (who, until, sample.clone(), Some(record.generation))));
        }
        let mut retired = BTreeSet::new();
        let mut letters = BTreeSet::new();
        for entry in "glfd".chars().flat_map(|kind| self.of(kind)) {
            let record = decode_versioned::<Retired>(entry)?.record;
            let parsed = Layout::parse_retired(&entry.key);
            let (sample, generation) = parsed.ok_or_else(|| unreadable(&entry.key))?;
            ensure!(
                retired.insert((sample.clone(), generation)),
                "{sample} {generation} is retired twice"
            );
            let live = self.entries.get(&self.layout.live(&sample));
            if let Some(live) = live.map(decode_versioned::<Live>).transpose()? {
                ensure!(
                    live.record.generation != generation,
                    "{sample} {generation} is live and retired"
                );
            }
            at_home(entry, self.layout.retired_home(&sample, &record)?)?;
            letters.extend(self.layout.letter_entry(&sample, &record));
            claims.extend(record.claims.iter().map(|key| (self.layout.claim(key), sample.clone())));
            owners.extend(self.owner(&sample, record.reserved_as.as_ref()));
            let of_readers = record.readers.iter().map(|lease| (lease.session, lease.until));
            held.extend(of_readers.map(|(who, until)| (who, until, sample.clone(), Some(generation))));
        }
        let claimed = self.of('k').map(|entry| Ok((entry.key.clone(), owner(entry)?.sample)));
        let claimed: BTreeSet<_> = claimed.collect::<Result<_>>()?;
        ensure_eq!(claimed, claims, "claims, and those of the records");
        let owned = self.of('a').map(|entry| (entry.key.clone(), entry.value.clone()));
        let owned: BTreeSet<_> = owned.collect();
        ensure_eq!(
            owned,
            owners,
            "owners of what was reserved ahead, and those of the records"
        );
        let kept: BTreeSet<String> = self.of('u').map(|entry| entry.key.clone()).collect();
        ensure_eq!(kept, letters, "entries of dead letters, and those of the records");
        let seen: BTreeSet<String> = self.of('q').map(|entry| entry.key.clone()).collect();
        let missing: Vec<_> = lists.difference(&seen).collect();
        let too_many: Vec<_> = seen.difference(&lists).collect();
        ensure!(
            missing.is_empty() && too_many.is_empty(),
            "the lists do not follow from the records; missing: {missing:?}, too many: {too_many:?}"
        );
        for (session, until, sample, generation) in held {
            self.is_noted(session, until, &Holding { sample, generation })?;
        }
        Ok(())
    }

    /// The entry that says what a reservation made ahead has become.
    fn owner(&self, sample: &SampleId, reserved_as: Option<&ReservedAs>) -> Option<(String, Vec<u8>)> {
        let ReservedAs { name, generation } = reserved_as?;
        let key = self.layout.owner_key(name, *generation);
        Some((key, sample.as_str().as_bytes().to_vec()))
    }

    /// Asserts that every lease has a grant list under its session and its tick.
    fn is_noted(&self, session: SessionId, until: Tick, holding: &Holding) -> CaseResult {
        let notes = self.layout.grant_lists(session, until);
        for entry in self.of('h').filter(|entry| entry.key.starts_with(&notes)) {
            if GrantList::read(entry)?.contains(holding) {
                return Ok(());
            }
        }
        Err(Failure::new(format!(
            "{session} holds {holding:?} until {until:?}, and there is no note of it"
        )))
    }
}

fn unreadable(key: &str) -> Failure {
    Failure::new(format!("this key cannot be read: {key}"))
}

/// The sample whose name is the last part of a key.
fn name(key: &str) -> CaseResult<SampleId> {
    let last = key.rsplit('/').next().and_then(unescape);
    Ok(SampleId::new(last.ok_or_else(|| unreadable(key))?)?)
}
