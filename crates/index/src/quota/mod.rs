//! Credits in the index: the rules of [`holdfast_custody::Ledger`], without a key that everybody writes.
//!
//! # Where the bytes of the budget are
//! Each of them is in exactly one place, always (LC5):
//!
//! ```text
//!                 reserve                                  commit, ack, retire, abort …
//!   b/free ──┬──────────────▶ paid bytes of a record (p) ─────────────▶ of the next one (s, g, f)
//!      ▲     │ some in advance       ▲ ▲                                         │ freed
//!      │     ▼                       │ │           somebody waits: serve them    │
//!      │  purse of a session ────────┘ └─────────────────────────────────────────┤
//!      │     │  ▲    reserve                              nobody waits           │
//!      │     │  └────────────────────────────────────────────────────────────────┤
//!      └─────┴──── gathered by one who must wait; the session has ended          │
//!      ▲                                                                         │
//!      └──── somebody waits, and it is too little for them ──────────────────────┘
//! ```
//!
//! The record is the account of what is outstanding: no account is touched when a sample moves on. A purse is a key like
//! any other, and who needs what lies idle in it takes it; its owner finds out at its next change of it, which requires
//! that the purse is as the owner remembers it. An empty purse is no purse.
//!
//! # Who waits
//! Those of a process that frees wait in the house: what it frees is handed to them without any key of theirs ([`local_queue`]).
//! Everybody else waits in the line. A session that waits there has one key in it, `b/w/{session}`; who wrote first is
//! first. The key says what is to be reserved, so that whoever frees does that too, in the transaction that frees
//! ([`serve`]): one who waited is told that its samples *are* reserved, and has nothing left to do ([`shared_queue`]).
//!
//! # Why nobody waits for nothing
//! - *Where somebody waits, there is no purse.* Who joins the line requires that there is none, and gathers those that there
//!   are before. Who fills a purse requires that nobody waits. Both are checked by the store, at one moment.
//! - So whatever could serve the line is in `b/free`, and everybody who serves looks there. *What is free does not serve the
//!   first in line*: who joins looks at the moment at which it has joined, and serves the line if it can, many at once; who
//!   frees shares out until it is so ([`share`]), on condition that `b/free` is as it was seen; and whoever leaves something
//!   in it looks again afterwards, since somebody may have joined in between. So does one who leaves the line, because the
//!   next may be content with less. To join does not depend on what is free: if it did, those who come at the same time
//!   would keep each other out.
//! - Who dies before that second look, or in line, leaves it to the next sweep, which looks as well.
//!
//! # What it costs
//! Without a wait, nothing but the bytes in the transactions that there are anyway; one more look whenever the purse is
//! empty. With a wait in the house, a transaction less than without any credits: that of the reservation. With a wait in
//! the line, one to join it, none to leave it, and one look for whoever frees. Guesses save the looks ([`look::Hints`],
//! [`purse::Balance`]); whoever goes by a guess makes it a condition.
//!
//! Those of one process who reach for the same key would only get in each other's way, so they do that one at a time
//! ([`gate`]): reach for what is free, gather purses, serve the line.

mod balance;
mod debit;
mod gate;
mod local_queue;
mod local_wait;
mod look;
mod peek;
mod refund;
mod serve;
mod share;
mod shared_queue;
mod wait_request;

use std::collections::HashSet;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result, Retry, SampleId};
use holdfast_custody::Version;

use tokio_util::sync::CancellationToken;

use self::balance::bytes_in;
use self::debit::{Debit, must_wait};
use self::local_wait::LocalOutcome;
use self::shared_queue::Joined;
use self::wait_request::{Ending, WaitRequest};
use crate::batch::Loaded;
use crate::index::TxnIndex;
use crate::intents::being_written_or_owned;
use crate::record::decode;
use crate::session::Session;
use crate::store::{Condition, Read, Transaction, TxnOutcome, Write};
use crate::types::Reserve;

pub(crate) use self::balance::Balance;
pub(crate) use self::local_queue::LocalQueue;
pub(crate) use self::look::Hints;
pub(crate) use self::peek::ReadAlong;
pub(crate) use self::shared_queue::QueuePosition;

const RESERVE: &str = "index.reserve";

/// After the deadline of one who waits: to leave the line in order, or to hear of a transaction that serves it.
const A_LITTLE_MORE: Duration = Duration::from_secs(1);

/// How many of the next items are reserved together. All of them must be had at once, so a good part of the budget would
/// wait for everybody else to be done; and whoever serves them needs room for them in a transaction.
fn how_many_together(items: &[Reserve], budget: u64) -> usize {
    const MOST: usize = 48;
    const MOST_TEXT: usize = 256 * 1024;
    let (mut bytes, mut text) = (0_u64, 0);
    let mut samples = HashSet::new();
    let mut together = 0;
    for item in items.iter().take(MOST) {
        bytes = bytes.saturating_add(item.bytes);
        text += item.plan.len();
        if !samples.insert(&item.sample) || bytes > budget / 4 || text > MOST_TEXT {
            break;
        }
        together += 1;
    }
    together.max(1)
}

impl TxnIndex {
    /// Sets the store's budget. Sessions opened from now on need credits to reserve.
    pub(crate) async fn do_set_budget(&self, bytes: u64, deadline: Deadline) -> Result<()> {
        const OPERATION: &str = "index.set_budget";
        let (budget, free) = (self.layout().budget(), self.layout().credits_free());
        let transaction = Transaction {
            conditions: vec![Condition::Absent(budget.clone())],
            writes: vec![
                Write::put(budget, bytes.to_string()),
                Write::put(free, bytes.to_string()),
            ],
        };
        match self
            .txn_store()
            .transact(&transaction, deadline.remaining(self.clock()))
            .await?
        {
            TxnOutcome::Committed(_) => Ok(()),
            TxnOutcome::Rejected => {
                let read = [Read::Key(self.layout().budget())];
                let snapshot = self.txn_store().read(&read, deadline.remaining(self.clock())).await?;
                let in_force: Option<u64> = snapshot.entries.iter().flatten().next().map(decode).transpose()?;
                let message = "this store has a budget already; the first one that was set counts";
                let error = Error::new(ErrorKind::Conflict, OPERATION, message).with("asked_for", bytes);
                Err(in_force.map_or(error.clone(), |budget| error.with("budget", budget)))
            }
        }
    }

    /// Reserves with credits.
    pub(crate) async fn reserve_with_credits(
        &self,
        session: &Session,
        items: &[Reserve],
        budget: u64,
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let mut results = Vec::with_capacity(items.len());
        let mut rest = items;
        while let Some(first) = rest.first() {
            let (now, later) = rest.split_at(how_many_together(rest, budget));
            rest = later;
            if first.bytes > budget {
                let message = "this sample is larger than the store's whole budget";
                let error = Error::new(ErrorKind::Capacity, RESERVE, message).with("sample", &first.sample);
                results.push(Err(error.with_retry(Retry::Never)));
                continue;
            }
            results.extend(match self.wait_locally(session, now, cancelled, deadline).await {
                Ok(LocalOutcome::Reserved(generation)) => now.iter().map(|_| Ok(generation)).collect(),
                Ok(LocalOutcome::Not(_in_line)) => self.take_a_turn(session, now, cancelled, deadline).await,
                Ok(LocalOutcome::Unclear(_in_line)) => {
                    let reserved = self.take_a_turn(session, now, cancelled, deadline).await;
                    self.or_served_meanwhile(session, now, reserved).await
                }
                Err(error) => now.iter().map(|_| Err(error.clone())).collect(),
            });
        }
        results
    }

    /// Those of one session take turns, in the order in which they came: they share a purse and a place in line.
    async fn take_a_turn(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let turn = tokio::select! {
            biased;
            () = cancelled.cancelled() => None,
            turn = tokio::time::timeout(deadline.remaining(self.clock()), session.turn.lock()) => turn.ok(),
        };
        let Some(mut place) = turn else {
            let message = "others of this process waited for credits until the deadline";
            let error = Error::new(ErrorKind::Capacity, RESERVE, message);
            return items.iter().map(|_| Err(error.clone())).collect();
        };
        self.pay_and_reserve(session, &mut place, items, cancelled, deadline)
            .await
    }

    /// Reserves items that belong together, from what is there or after a wait.
    async fn pay_and_reserve(
        &self,
        session: &Session,
        place: &mut QueuePosition,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let mut results: Vec<Option<Result<Generation>>> = items.iter().map(|_| None).collect();
        loop {
            let open: Vec<usize> = (0..items.len()).filter(|at| results[*at].is_none()).collect();
            let wanted: Vec<Reserve> = open.iter().map(|at| items[*at].clone()).collect();
            if wanted.is_empty() {
                break;
            }
            let need = wanted.iter().fold(0_u64, |need, item| need.saturating_add(item.bytes));
            let purse = session.balance.remembered();
            let has_enough = bytes_in(purse.as_ref()).is_ok_and(|bytes| bytes >= need);
            if has_enough || !place.contended {
                let reach = if has_enough { None } else { self.reach(deadline).await };
                if !has_enough && reach.is_none() {
                    place.contended = true;
                    continue;
                }
                let spending = Debit::new(self, session);
                let seen = has_enough.then(Loaded::default);
                let reserved = self
                    .reserve_now(session, &wanted, Some(&spending), seen, deadline)
                    .await;
                for (at, result) in open.into_iter().zip(reserved) {
                    if !result.as_ref().is_err_and(must_wait) {
                        results[at] = Some(result);
                    }
                }
                drop(reach);
                place.contended = results.iter().any(Option::is_none);
                continue;
            }
            match self
                .wait_and_reserve(session, place, &wanted, cancelled, deadline)
                .await
            {
                Ok(reserved) => {
                    for (at, result) in open.into_iter().zip(reserved) {
                        results[at] = result;
                    }
                }
                Err(error) => open.iter().for_each(|at| results[*at] = Some(Err(error.clone()))),
            }
        }
        let missing = || Err(Error::internal(RESERVE, "an item was left without a result"));
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(missing))
            .collect()
    }

    /// Those of a process reach for what is free one after the other: if all did at once, all but one would in vain. None if
    /// somebody waits for it, or the time is up.
    async fn reach(&self, deadline: Deadline) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let reach = tokio::time::timeout(deadline.remaining(self.clock()), self.local_queue().reach.lock());
        let reach = reach.await.ok()?;
        (!self.hints().somebody_waits()).then_some(reach)
    }

    /// Waits in line until all items are reserved, or some turn out to be another's: those get their result, and the others
    /// none yet.
    async fn wait_and_reserve(
        &self,
        session: &Session,
        place: &mut QueuePosition,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Result<Vec<Option<Result<Generation>>>> {
        let want = WaitRequest::of(items);
        let refused = |samples: &[SampleId]| {
            let result = |item: &Reserve| {
                samples
                    .contains(&item.sample)
                    .then(|| Err(being_written_or_owned(item)))
            };
            Ok(items.iter().map(result).collect())
        };
        let since = match self.join_queue(session, &want, cancelled, deadline).await? {
            Joined::InLine { since, in_vain } => {
                place.contended = !in_vain;
                since
            }
            Joined::Taken(samples) => return refused(&samples),
        };
        let (told, version) = self
            .wait_in_queue(session, place, &want, since, cancelled, deadline)
            .await?;
        match told.ending {
            Ending::Taken { samples } => refused(&samples),
            Ending::Reserved { until, note } => {
                let generation = self.was_reserved(session, &want, version, until, Some(note))?;
                Ok(items.iter().map(|_| Some(Ok(generation))).collect())
            }
        }
    }
}

/// A reservation's generation is the version of the write that made it.
pub(crate) fn generation_of(version: Version) -> Result<Generation> {
    Generation::new(version.0).ok_or_else(|| Error::internal(RESERVE, "the index gave out version zero"))
}

/// What a process that waits writes, and what it is told: see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    crate::fuzzing::stable::<wait_request::WaitRequest>(bytes);
    crate::fuzzing::stable::<wait_request::WaitResult>(bytes);
}
