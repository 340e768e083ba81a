//! The shared clock, as this process knows it.

use std::time::Duration;

use tensorhold_core::{Deadline, Result, Retry, Timestamp};
use tensorhold_custody::{Tick, Version};

use crate::record::codec::decode;
use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, Write, is_full};
use crate::txn::TxnCore;

/// The shared clock as this process last saw it.
///
/// Of two observations the later one counts: the one at the larger version of the store, not of the clock. In a store
/// that was restored to an earlier state the clock is older than the one seen before, or absent.
#[derive(Debug, Default)]
pub(crate) struct SeenClock {
    tick: Tick,
    version: Option<Version>,
    /// When this process first saw this tick, by its own clock.
    since: Option<Timestamp>,
    /// The version of the store at which the clock was last seen.
    at: Version,
}

impl TxnCore {
    /// The shared clock as last seen, and for how long it has been seen to stand there.
    pub(crate) fn seen_clock(&self) -> Option<(Tick, Duration)> {
        let seen = self.seen.lock();
        let since = seen.since?;
        Some((seen.tick, self.clock().now().since(since)))
    }

    /// Records what was read of the shared clock when the store was at version `at`.
    pub(crate) fn note_tick(&self, entry: Option<&Entry>, at: Version) -> Result<()> {
        let tick = entry.map(decode).transpose()?;
        let version = entry.map(|entry| entry.version);
        let mut seen = self.seen.lock();
        if at < seen.at {
            return Ok(());
        }
        seen.at = at;
        if seen.version != version {
            *seen = SeenClock {
                tick: tick.unwrap_or_default(),
                version,
                since: version.map(|_| self.clock().now()),
                at,
            };
        }
        Ok(())
    }

    /// Has the shared clock read anew: while this process had no session, the store may have been forgotten, and its clock
    /// with it.
    pub(crate) fn doubt_clock(&self) {
        let mut seen = self.seen.lock();
        *seen = SeenClock {
            at: seen.at,
            ..SeenClock::default()
        };
    }

    /// The shared clock, as last seen; creates it if there is none.
    pub(crate) async fn known_tick(&self, deadline: Deadline) -> Result<Tick> {
        Ok(self.known_clock(deadline).await?.0)
    }

    /// The shared clock, as last seen, and the version at which it was set; creates it if there is none.
    pub(crate) async fn known_clock(&self, deadline: Deadline) -> Result<(Tick, Version)> {
        loop {
            {
                let seen = self.seen.lock();
                if let Some(version) = seen.version {
                    return Ok((seen.tick, version));
                }
            }
            let key = self.layout().clock();
            let snapshot = self
                .txn_store()
                .read(&[Read::Key(key.clone())], deadline.remaining(self.clock()))
                .await?;
            let entry = snapshot.entries.into_iter().flatten().next();
            self.note_tick(entry.as_ref(), snapshot.version)?;
            if entry.is_some() {
                continue;
            }
            self.write_tick(Condition::Absent(key), Tick(1), deadline).await?;
        }
    }

    /// Advances the shared clock if it has stood at the present tick for a whole tick's length by our own clock.
    /// Returns the tick.
    pub(crate) async fn advance(&self, deadline: Deadline) -> Result<Tick> {
        let key = self.layout().clock();
        let snapshot = self
            .txn_store()
            .read(&[Read::Key(key.clone())], deadline.remaining(self.clock()))
            .await?;
        self.note_tick(snapshot.entries.iter().flatten().next(), snapshot.version)?;
        self.known_clock(deadline).await?;
        let tick_length = self.tick_length();
        let due = {
            let seen = self.seen.lock();
            let stood = seen
                .since
                .map(|since| self.clock().now().since(since))
                .unwrap_or_default();
            seen.version
                .filter(|_| stood >= tick_length)
                .map(|version| (Condition::Unchanged(key, version), seen.tick.after(1)))
        };
        if let Some((unchanged, next)) = due {
            self.write_tick(unchanged, next, deadline).await?;
        }
        self.known_tick(deadline).await
    }

    /// Writes the shared clock. It does not matter if another process was faster: both have waited for a whole tick.
    async fn write_tick(&self, condition: Condition, tick: Tick, deadline: Deadline) -> Result<()> {
        let key = self.layout().clock();
        let value = tick.0.to_string().into_bytes();
        let is_first = matches!(condition, Condition::Absent(_));
        let transaction = Transaction {
            conditions: vec![condition],
            writes: vec![Write::put(key.clone(), value.clone())],
        };
        let answer = match is_first {
            true => self.transact_here(&transaction, deadline).await,
            false => {
                let left = deadline.remaining(self.clock());
                self.txn_store().transact(&transaction, left).await
            }
        };
        match answer {
            Ok(TxnOutcome::Committed(version)) => self.note_tick(Some(&Entry { key, value, version }), version),
            Err(error) if error.retry() != Retry::Ambiguous => Err(error),
            // Another process did, or the outcome is ambiguous: read it.
            other => {
                let before = self.seen.lock().version;
                let snapshot = self
                    .txn_store()
                    .read(&[Read::Key(key)], deadline.remaining(self.clock()))
                    .await?;
                self.note_tick(snapshot.entries.iter().flatten().next(), snapshot.version)?;
                match other {
                    // A full store has answered: a write that is not visible now will never be applied.
                    Err(error) if is_full(&error) && self.seen.lock().version == before => {
                        Err(error.with_retry(Retry::Safe))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}
