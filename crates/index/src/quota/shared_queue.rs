//! The line: one key per session that waits, and one watch of what it is told.
//!
//! ```text
//!            nothing lies idle                 served: the want goes, `b/t` says so
//! (outside) ──────────────────────────▶ in line ────────────────────────────────────▶ reserved
//!     ▲                                  │    └── a sample is another's by now: `b/t` says which ──▶ refused
//!     └── deadline, its caller left: withdrawn ┘
//! ```
//!
//! Whatever is unclear is looked up, never guessed: the want is there (still in line), or `b/t` has an answer to exactly
//! this wait, or neither, and then the session has ended.
//!
//! # What if
//! - *the one who waits dies*: its want vanishes with its session. The next sweep serves whoever is first then.
//! - *the reply to joining is lost*: the slot tells. If the deadline passes before it does, the caller is told that it is
//!   unclear, and the want may be in line, now or later. It is served like any other, and the reservation expires like any
//!   other that nobody commits; the session's next wait finds it in its way, and takes it out of the line.
//! - *a reservation is given up half-way* (its future is dropped): the same.
//! - *withdrawing and serving meet*: one of the two transactions comes first. Served is served.
//! - *the watch breaks*: both keys are read, and it is opened again from there.

use std::collections::HashSet;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Result, Retry, SampleId};
use holdfast_custody::Version;

use tokio_util::sync::CancellationToken;

use super::A_LITTLE_MORE;
use super::Quota;
use super::balance::bytes_in;
use super::wait_request::{WaitRequest, WaitResult};
use crate::record::codec::{decode, encode};
use crate::store::{Change, Condition, Entry, Read, TxnOutcome, Write};
use crate::txn::session::Session;
use crate::txn::session_quota::QueuePosition;

const OPERATION: &str = "index.reserve";

/// How many purses are looked into by one who is about to wait, and emptied if there is something in them.
const PURSES: usize = 64;

/// What became of joining the line.
pub(super) enum Joined {
    InLine {
        since: Version,
        /// Whether there was enough.
        in_vain: bool,
    },
    /// Others are writing these.
    Taken(Vec<SampleId>),
}

impl Quota {
    /// Joins the line, on condition that nothing lies idle. If what is free serves the first in line then, serves it.
    pub(super) async fn join_queue(
        &self,
        session: &Session,
        want: &WaitRequest,
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Result<Joined> {
        let mut tries = 0;
        while !deadline.passed(self.core.clock()) && !cancelled.is_cancelled() {
            if let Some((since, free)) = self.try_to_join(session, want, deadline).await? {
                self.hints().joined_line();
                // If that served another who waited before, somebody else has seen to it.
                let in_vain = free.is_none_or(|free| free >= want.bytes());
                if in_vain {
                    self.serve_or_leave_it(session, deadline).await;
                }
                return Ok(Joined::InLine { since, in_vain });
            }
            let left = deadline.remaining(self.core.clock());
            let Some(pass) = self.local_queue().gathering.pass(left).await else {
                continue;
            };
            let own_want = self.core.layout().wait_request(session.id());
            let purses = Read::Range {
                keys: self.core.layout().all_balances(),
                limit: PURSES,
                keys_only: false,
            };
            let in_its_way = want.in_its_way(self.core.layout());
            let keys = [own_want, self.core.layout().alive(session.id())]
                .into_iter()
                .chain(in_its_way);
            let rest = [purses].into_iter().chain(keys.map(Read::Key));
            let snapshot = self.look_at_credits(session, 1, rest, deadline).await?;
            let look = self.looked(session, &snapshot)?;
            let Some(([purses, stale, alive], in_its_way)) = look.rest.split_first_chunk::<3>() else {
                return Err(Error::internal(OPERATION, "the store answered another number of reads"));
            };
            if alive.is_empty() {
                return Err(session.fenced(OPERATION));
            }
            let there: HashSet<&String> = in_its_way.iter().flatten().map(|entry| &entry.key).collect();
            let taken = want.samples.iter();
            let taken = taken.filter(|wish| wish.in_its_way(self.core.layout()).any(|key| there.contains(&key)));
            let taken: Vec<_> = taken.map(|wish| wish.sample.clone()).collect();
            if !taken.is_empty() {
                return Ok(Joined::Taken(taken));
            }
            if let Some(stale) = stale.first() {
                self.leave_queue(session, stale.version, deadline).await?;
                continue;
            }
            if !purses.is_empty() && self.gather(session, look.free()?, purses, deadline).await? {
                pass.finish();
            } else {
                drop(pass);
                self.pause(tries).await;
                tries += 1;
            }
        }
        Err(spent(want))
    }

    /// None if something is in the way. Else since when it is in line, and what was free at that moment, unless the answer
    /// was lost.
    async fn try_to_join(
        &self,
        session: &Session,
        want: &WaitRequest,
        deadline: Deadline,
    ) -> Result<Option<(Version, Option<u64>)>> {
        let key = self.core.layout().wait_request(session.id());
        let mut conditions = vec![
            Condition::NoneIn(self.core.layout().all_balances()),
            Condition::Absent(key.clone()),
        ];
        conditions.extend(want.in_its_way(self.core.layout()).into_iter().map(Condition::Absent));
        let writes = vec![Write::Put {
            key,
            value: encode(want)?,
            session: Some(session.id()),
        }];
        let reads = [Read::Key(self.core.layout().credits_free())];
        let (applied, snapshot) = self
            .core
            .slots()
            .transact_and_read(OPERATION, session, conditions, writes, &reads, deadline)
            .await?;
        match applied {
            TxnOutcome::Committed(since) => {
                let free = snapshot.map(|read| bytes_in(read.entries.iter().flatten().next()));
                Ok(Some((since, free.transpose()?)))
            }
            TxnOutcome::Rejected => Ok(None),
        }
    }

    /// Waits for the end of a wait that began at `since`; at the deadline, or when the caller has left, leaves the line. Returns what it was told, and
    /// when.
    pub(super) async fn wait_in_queue(
        &self,
        session: &Session,
        place: &mut QueuePosition,
        want: &WaitRequest,
        since: Version,
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Result<(WaitResult, Version)> {
        if let Some(told) = self.until_told(session, place, since, cancelled, deadline).await? {
            return Ok(told);
        }
        let deadline = self.core.deadline(A_LITTLE_MORE);
        while !deadline.passed(self.core.clock()) {
            if self.leave_queue(session, since, deadline).await? {
                // Whoever is next may be content with less.
                self.serve_or_leave_it(session, deadline).await;
                return Err(spent(want));
            }
            // It was served meanwhile, or the request was lost on its way.
            if let (Some(told), _) = self.what_was_told(session, since, deadline).await? {
                return Ok(told);
            }
        }
        let message = "the line could not be left within the deadline: it may be reserved later";
        Err(Error::unavailable(OPERATION, message).with_retry(Retry::Ambiguous))
    }

    /// None if the deadline passes, or the caller has left.
    async fn until_told(
        &self,
        session: &Session,
        place: &mut QueuePosition,
        since: Version,
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Result<Option<(WaitResult, Version)>> {
        let key = self.core.layout().wait_result(session.id());
        let mut after = since;
        let mut tries = 0;
        loop {
            let left = deadline.remaining(self.core.clock());
            if left.is_zero() {
                return Ok(None);
            }
            let changes = tokio::select! {
                changes = tokio::time::timeout(left, self.next_told(place, &key, after, left)) => changes,
                () = session.ended() => return Err(session.fenced(OPERATION)),
                () = cancelled.cancelled() => return Ok(None),
            };
            match changes {
                Err(_) => return Ok(None),
                Ok(Ok(changes)) => {
                    for change in changes {
                        if let Some(told) = read_told(&change.key, change.value, change.version, since)? {
                            return Ok(Some(told));
                        }
                    }
                }
                Ok(Err(error)) => {
                    tracing::debug!(OPERATION, %error, "the watch of one who waits is opened again");
                    place.watch = None;
                    self.pause(tries).await;
                    tries += 1;
                    match self.what_was_told(session, since, deadline).await {
                        Ok((Some(told), _)) => return Ok(Some(told)),
                        Ok((None, version)) => after = version,
                        Err(error) if error.kind() == ErrorKind::Unavailable => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// The next changes of what is told to a session. Giving this up loses nothing.
    async fn next_told(
        &self,
        place: &mut QueuePosition,
        key: &str,
        after: Version,
        within: Duration,
    ) -> Result<Vec<Change>> {
        let watch = match &mut place.watch {
            Some(watch) => watch,
            none => {
                let only = key.to_owned()..format!("{key}\u{0}");
                none.insert(self.core.txn_store().watch(only, after, within).await?)
            }
        };
        watch.next().await
    }

    /// What was told about the wait that began at `since`, if something was, and the store's version at that moment.
    async fn what_was_told(
        &self,
        session: &Session,
        since: Version,
        deadline: Deadline,
    ) -> Result<(Option<(WaitResult, Version)>, Version)> {
        let keys = [
            self.core.layout().wait_result(session.id()),
            self.core.layout().alive(session.id()),
        ];
        let reads = keys.map(Read::Key);
        let snapshot = self
            .core
            .txn_store()
            .read(&reads, deadline.remaining(self.core.clock()))
            .await?;
        let [told, alive] = snapshot.entries.as_slice() else {
            return Err(Error::internal(OPERATION, "the store answered another number of reads"));
        };
        if alive.is_empty() {
            return Err(session.fenced(OPERATION));
        }
        let told = match told.first().cloned() {
            Some(entry) => read_told(&entry.key, Some(entry.value), entry.version, since)?,
            None => None,
        };
        Ok((told, snapshot.version))
    }

    /// Takes the session's want that was written at `since` out of the line. False if it was not there any more.
    async fn leave_queue(&self, session: &Session, since: Version, deadline: Deadline) -> Result<bool> {
        let key = self.core.layout().wait_request(session.id());
        let conditions = vec![Condition::Unchanged(key.clone(), since)];
        let applied = self
            .core
            .slots()
            .transact(OPERATION, session, conditions, vec![Write::Delete(key)], deadline)
            .await?;
        Ok(matches!(applied, TxnOutcome::Committed(_)))
    }
}

/// What is told, if it is about the wait that began at `since`.
fn read_told(
    key: &str,
    value: Option<Vec<u8>>,
    version: Version,
    since: Version,
) -> Result<Option<(WaitResult, Version)>> {
    let Some(value) = value else { return Ok(None) };
    let told: WaitResult = decode(&Entry {
        key: key.to_owned(),
        value,
        version,
    })?;
    Ok((told.since == since).then_some((told, version)))
}

pub(super) fn spent(want: &WaitRequest) -> Error {
    let message = "the store's budget is spent, and none came back in time; free samples, or raise the budget";
    Error::new(ErrorKind::Capacity, OPERATION, message).with("wanted", want.bytes())
}
