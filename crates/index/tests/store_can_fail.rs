//! The suite finds what it is for: a store with one defect fails the case about that defect.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{ManualClock, Result};
use tensorhold_custody::{SessionId, Version};
use tensorhold_index::store::memory::{MemoryStore, Saved};
use tensorhold_index::store::testing::{Backend, Harness, cases, run};
use tensorhold_index::store::{
    Change, Condition, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write,
};

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    ForgetsConditions,
    ChecksOneCondition,
    LosesWrites,
    SplitsTransactions,
    ReadsOneByOne,
    IgnoresLimits,
    IgnoresKeysOnly,
    KeepsKeysOfSessions,
    WritesWithDeadSessions,
    SkipsDeletions,
    WatchesFromNow,
    IgnoresDeadlines,
    TellsAmbiguousAsSafe,
    LooksAtTheFirstKeyOfARange,
    SortsByKey,
}

#[derive(Clone, Debug)]
struct Broken {
    txn_store: MemoryStore,
    defect: Defect,
}

impl Broken {
    fn is(&self, defect: Defect) -> bool {
        self.defect == defect
    }
}

#[async_trait]
impl TxnStore for Broken {
    fn limits(&self) -> Limits {
        self.txn_store.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        let mut reads = reads.to_vec();
        for read in &mut reads {
            if let Read::Range { limit, keys_only, .. } = read {
                *limit = if self.is(Defect::IgnoresLimits) {
                    usize::MAX
                } else {
                    *limit
                };
                *keys_only &= !self.is(Defect::IgnoresKeysOnly);
            }
            if let Read::Oldest { keys, limit } = read
                && self.is(Defect::SortsByKey)
            {
                *read = Read::Range {
                    keys: keys.clone(),
                    limit: *limit,
                    keys_only: false,
                };
            }
        }
        if !self.is(Defect::ReadsOneByOne) || reads.is_empty() {
            return self.txn_store.read(&reads, within).await;
        }
        let mut all = self.txn_store.read(&[], within).await?;
        for read in reads {
            tokio::time::sleep(Duration::from_millis(1)).await;
            all.entries.extend(self.txn_store.read(&[read], within).await?.entries);
        }
        Ok(all)
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        let mut transaction = transaction.clone();
        let mut within = within;
        match self.defect {
            Defect::ForgetsConditions => transaction.conditions.clear(),
            Defect::LooksAtTheFirstKeyOfARange => transaction.conditions.iter_mut().for_each(|condition| {
                if let Condition::NoneIn(keys) = condition {
                    *condition = Condition::Absent(keys.start.clone());
                }
            }),
            Defect::ChecksOneCondition => transaction.conditions.truncate(1),
            Defect::IgnoresDeadlines => within = within.max(Duration::from_secs(1)),
            Defect::LosesWrites if transaction.writes.len() > 1 => drop(transaction.writes.pop()),
            Defect::KeepsKeysOfSessions => transaction.writes.iter_mut().for_each(|write| {
                if let Write::Put { session, .. } = write {
                    *session = None;
                }
            }),
            Defect::WritesWithDeadSessions => {
                let alive = self.txn_store.sessions();
                for write in &mut transaction.writes {
                    if let Write::Put { session, .. } = write {
                        *session = session.filter(|session| alive.contains(session));
                    }
                }
            }
            Defect::SplitsTransactions if transaction.conditions.is_empty() && transaction.writes.len() > 1 => {
                let last = transaction.writes.split_off(1);
                self.txn_store.transact(&transaction, within).await?;
                transaction.writes = last;
            }
            Defect::TellsAmbiguousAsSafe if within < Duration::from_millis(1) => {
                self.txn_store.transact(&transaction, Duration::from_secs(1)).await?;
                within = Duration::ZERO;
            }
            _ => {}
        }
        self.txn_store.transact(&transaction, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.txn_store.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        let now = self.txn_store.read(&[], Duration::from_secs(1)).await?.version;
        let after = if self.is(Defect::WatchesFromNow) { now } else { after };
        let watch = self.txn_store.watch(keys, after, within).await?;
        Ok(match self.defect {
            Defect::SkipsDeletions => Box::new(Forgetful(watch)),
            _ => watch,
        })
    }
}

/// A watch that delivers no deletion.
#[derive(Debug)]
struct Forgetful(Box<dyn Watch>);

#[async_trait]
impl Watch for Forgetful {
    async fn next(&mut self) -> Result<Vec<Change>> {
        loop {
            let mut changes = self.0.next().await?;
            changes.retain(|change| change.value.is_some());
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }
}

struct BrokenBackend(Defect);

struct OnBroken {
    clock: Arc<ManualClock>,
    broken: Broken,
    saved: parking_lot::Mutex<Option<Saved>>,
}

#[async_trait]
impl Backend for BrokenBackend {
    async fn start(&self) -> Result<Box<dyn Harness>> {
        let clock = Arc::new(ManualClock::new());
        let txn_store = MemoryStore::new(Arc::<ManualClock>::clone(&clock));
        Ok(Box::new(OnBroken {
            clock,
            broken: Broken {
                txn_store,
                defect: self.0,
            },
            saved: parking_lot::Mutex::default(),
        }))
    }
}

#[async_trait]
impl Harness for OnBroken {
    async fn connect(&self) -> Result<Arc<dyn TxnStore>> {
        Ok(Arc::new(self.broken.clone()))
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.broken.txn_store.settle();
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.broken.txn_store.expire(session);
        Ok(())
    }

    async fn compact(&self, version: Version) -> Result<bool> {
        self.broken.txn_store.compact(version);
        Ok(true)
    }

    async fn save(&self) -> Result<()> {
        *self.saved.lock() = Some(self.broken.txn_store.save());
        Ok(())
    }

    async fn put_back(&self) -> Result<()> {
        if let Some(saved) = &*self.saved.lock() {
            self.broken.txn_store.put_back(saved);
        }
        Ok(())
    }

    async fn declare(&self) -> Result<()> {
        self.broken.txn_store.declare();
        Ok(())
    }
}

#[test]
fn a_defect_fails_the_case_that_is_about_it() {
    let found_by = [
        (Defect::ForgetsConditions, "conditions::unchanged"),
        (Defect::ForgetsConditions, "concurrency::one_of_many_creates_a_key"),
        (Defect::ForgetsConditions, "concurrency::increments_are_not_lost"),
        (Defect::ChecksOneCondition, "conditions::must_all_hold"),
        (Defect::LooksAtTheFirstKeyOfARange, "conditions::none_in"),
        (
            Defect::LooksAtTheFirstKeyOfARange,
            "conditions::none_in_sees_a_key_of_the_same_moment",
        ),
        (Defect::SortsByKey, "ranges::give_the_oldest_first_if_asked_to"),
        (Defect::LosesWrites, "transactions::give_all_their_keys_one_version"),
        (
            Defect::SplitsTransactions,
            "transactions::give_all_their_keys_one_version",
        ),
        (
            Defect::SplitsTransactions,
            "watches::tell_what_a_transaction_changed_together",
        ),
        (Defect::ReadsOneByOne, "reads::of_one_call_see_one_moment"),
        (Defect::IgnoresLimits, "ranges::give_the_first_of_a_limit"),
        (Defect::IgnoresKeysOnly, "ranges::without_values_have_keys_and_versions"),
        (
            Defect::KeepsKeysOfSessions,
            "sessions::take_their_keys_along_when_closed",
        ),
        (
            Defect::KeepsKeysOfSessions,
            "sessions::take_their_keys_along_when_they_die",
        ),
        (Defect::WritesWithDeadSessions, "sessions::that_are_closed_are_fenced"),
        (Defect::WritesWithDeadSessions, "sessions::that_never_were_are_fenced"),
        (Defect::IgnoresDeadlines, "deadlines::of_no_time_have_no_effect"),
        (Defect::TellsAmbiguousAsSafe, "deadlines::that_are_short_are_kept"),
    ];
    for (defect, name) in found_by {
        finds(defect, name);
    }
}

/// Each waits 20 s for something that never comes, so each is a test of its own.
#[test]
fn a_watch_that_skips_deletions_is_found() {
    finds(Defect::SkipsDeletions, "watches::tell_deletions");
}

#[test]
fn a_watch_that_begins_too_late_is_found() {
    finds(Defect::WatchesFromNow, "watches::begin_after_a_version_in_the_past");
}

fn finds(defect: Defect, name: &str) {
    let case = cases().into_iter().find(|case| case.name == name).expect(name);
    run(&BrokenBackend(defect), &case).expect_err(&format!("{name} should find {defect:?}"));
}

/// The suite's own client is not what is broken: without a defect that matters, the cases pass.
#[test]
fn a_case_that_is_not_about_the_defect_passes() {
    let case = cases()
        .into_iter()
        .find(|case| case.name == "conditions::unchanged")
        .expect("a case");
    run(&BrokenBackend(Defect::IgnoresKeysOnly), &case).expect("it is about something else");
}
