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

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result, SampleId};

use tokio_util::sync::CancellationToken;

use self::shared_queue::Joined;
use self::wait_request::{Ending, WaitRequest};
use crate::record::codec::decode;
use crate::record::refusal::being_written_or_owned;
use crate::record::types::Reserve;
use crate::store::{Condition, Read, Transaction, TxnOutcome, Write};
use crate::txn::TxnCore;
use crate::txn::session::Session;

pub(crate) use self::balance::bytes_in;
pub(crate) use self::debit::{Debit, must_wait};
pub(crate) use self::local_wait::LocalOutcome;
pub(crate) use crate::txn::session_quota::QueuePosition;

use self::local_queue::LocalQueue;
use self::look::Hints;

/// The store's quota, as this process sees it.
#[derive(Debug)]
pub(crate) struct Quota {
    core: Arc<TxnCore>,
    hints: Hints,
    local_queue: Arc<LocalQueue>,
}

const RESERVE: &str = "index.reserve";

/// After the deadline of one who waits: to leave the line in order, or to hear of a transaction that serves it.
const A_LITTLE_MORE: Duration = Duration::from_secs(1);

impl Quota {
    pub(crate) fn new(core: Arc<TxnCore>) -> Self {
        Self {
            core,
            hints: Hints::default(),
            local_queue: Arc::default(),
        }
    }

    fn hints(&self) -> &Hints {
        &self.hints
    }

    fn local_queue(&self) -> &Arc<LocalQueue> {
        &self.local_queue
    }

    /// Sets the store's budget. Sessions opened from now on need credits to reserve.
    pub(crate) async fn set_budget(&self, bytes: u64, deadline: Deadline) -> Result<()> {
        const OPERATION: &str = "index.set_budget";
        let (budget, free) = (self.core.layout().budget(), self.core.layout().credits_free());
        let transaction = Transaction {
            conditions: vec![Condition::Absent(budget.clone())],
            writes: vec![
                Write::put(budget, bytes.to_string()),
                Write::put(free, bytes.to_string()),
            ],
        };
        match self
            .core
            .txn_store()
            .transact(&transaction, deadline.remaining(self.core.clock()))
            .await?
        {
            TxnOutcome::Committed(_) => Ok(()),
            TxnOutcome::Rejected => {
                let read = [Read::Key(self.core.layout().budget())];
                let snapshot = self
                    .core
                    .txn_store()
                    .read(&read, deadline.remaining(self.core.clock()))
                    .await?;
                let in_force: Option<u64> = snapshot.entries.iter().flatten().next().map(decode).transpose()?;
                let message = "this store has a budget already; the first one that was set counts";
                let error = Error::new(ErrorKind::Conflict, OPERATION, message).with("asked_for", bytes);
                Err(in_force.map_or(error.clone(), |budget| error.with("budget", budget)))
            }
        }
    }

    /// Those of a process reach for what is free one after the other: if all did at once, all but one would in vain. None if
    /// somebody waits for it, or the time is up.
    pub(crate) async fn reach(&self, deadline: Deadline) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let reach = tokio::time::timeout(deadline.remaining(self.core.clock()), self.local_queue().reach.lock());
        let reach = reach.await.ok()?;
        (!self.hints().somebody_waits()).then_some(reach)
    }

    /// Waits in line until all items are reserved, or some turn out to be another's: those get their result, and the others
    /// none yet.
    pub(crate) async fn wait_and_reserve(
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

/// What a process that waits writes, and what it is told: see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    crate::fuzzing::stable::<wait_request::WaitRequest>(bytes);
    crate::fuzzing::stable::<wait_request::WaitResult>(bytes);
}
