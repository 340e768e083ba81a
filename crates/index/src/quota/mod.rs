//! Quota in the index: the rules of [`tensorhold_custody::quota`], carried out in transactions.
//!
//! | key | what |
//! |---|---|
//! | `b/a/{session}-{number}` | a deposit: bytes that no sample was paid with. The name only makes it unique; it belongs to nobody |
//! | `b/w/{session}` | a process waits, and what it wants to reserve. Its place is the version at which this was written |
//! | `b/t/{session}` | the last answer to a process that waited |
//!
//! ```text
//!  reserve ──▶ waits in the broker ──▶ the process's task: pays from deposits, or joins the shared queue ──▶ reserved
//!                     └──── what the process frees is reserved for the first, in the transaction that frees ────▲
//! ```
//!
//! `wait` is the caller's side, `task` that of the process: one task, which runs while there are waiters. `refund` is what
//! a free does, `serve` how the shared queue is served, `draft` a transaction that reserves for waiters.
//!
//! # Why nobody waits for nothing
//! - A deposit that could serve the queue is made only while the queue is empty: the transaction requires that. So a process
//!   that joins looks at the moment at which it has joined, and serves the first in the queue if the deposits do. (A budget
//!   that grows makes one beside a queue; the next sweep or free serves it.)
//! - What is left over beside a queue is too little for its first; the process that leaves something
//!   over looks again afterwards, and so does one that leaves the queue, because the next may be content with less.
//! - A process that dies before that second look, or in the queue, leaves it to the next sweep, which looks too.
//!
//! # What it costs
//! A reservation that does not wait is one transaction, shared with others that come at the same time; it reads if the
//! process knows no deposit of its own. A wait that a free of the same process ends costs no transaction. A wait in the
//! shared queue costs one to join it, and a look for the process that frees.
//!
//! # What if
//! - *the task panics or its runtime ends*: its waiters are told at their deadlines; the next reservation starts another.
//! - *the index does not answer*: the task tries again, more and more slowly, for as long as there are waiters.
//! - *the watch breaks*: what is in the queue is read again.
//! - *the shared clock moves*: transactions that set deadlines are refused; every look and every examination reads it.
//! - *the budget shrinks below a request in the queue*: it is passed over, and its process takes it out.
//! - *another client writes requests, answers or deposits*: what no process of ours can have written is no request; the
//!   sweep quarantines it. An answer that cannot be decoded is none.

mod budget;
mod draft;
mod refund;
mod request;
mod serve;
mod task;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tensorhold_core::Error;
use tensorhold_custody::quota::Broker;
use tensorhold_custody::{SessionId, Version};
use tokio::sync::Notify;

pub(crate) use self::request::{MOST_OPERATIONS, MOST_TEXT, written_len};
use self::wait::Waiting;
use crate::record::layout::Layout;
use crate::store::Entry;
use crate::txn::TxnCore;

const OPERATION: &str = "index.reserve";

/// The store's quota, as this process sees it.
#[derive(Debug)]
pub(crate) struct Quota {
    core: Arc<TxnCore>,
    state: Mutex<State>,
    /// Wakes the task: a waiter's transaction was refused, and it has to be looked at.
    doubt: Notify,
    next_deposit: AtomicU64,
    /// The budget that was last read.
    budget: AtomicU64,
    /// Whether processes were in the shared queue when it was last seen: this one too, since where one waits others will.
    /// The next free that finds the queue empty ends it.
    others_wait: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    broker: Broker<String, Waiting>,
    /// Whether the task runs.
    runs: bool,
    /// Why the task's last step failed.
    failed: Option<Error>,
    /// How often the task found too little for the first waiter.
    too_little: u64,
}

impl State {
    /// Whether there was too little for a waiter that came when the task had found that so often. Behind a process in the
    /// queue there is too little, too.
    fn found_too_little(&self, before: u64) -> bool {
        self.too_little > before || self.broker.is_in_queue()
    }
}

impl Quota {
    pub(crate) fn new(core: Arc<TxnCore>) -> Self {
        Self {
            core,
            state: Mutex::default(),
            doubt: Notify::new(),
            next_deposit: AtomicU64::new(0),
            budget: AtomicU64::new(u64::MAX),
            others_wait: AtomicBool::new(false),
        }
    }

    fn version(&self) -> Version {
        self.core.slots().latest()
    }

    /// The key of the next deposit that a session makes.
    fn new_deposit(&self, session: SessionId) -> String {
        let number = self.next_deposit.fetch_add(1, Ordering::Relaxed);
        self.core.layout().deposit(session, number)
    }
}

/// The session that waits by an entry of the shared queue, and how many bytes it wants; none if it cannot be read.
pub(crate) fn wants(layout: &Layout, entry: &Entry) -> Option<(SessionId, u64)> {
    let queued = request::Queued::read(layout, entry).ok()?;
    Some((queued.session, queued.want.bytes()))
}

/// What a process that waits writes, and what it is told: see [`crate::fuzzing`].
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    crate::fuzzing::stable::<request::WaitRequest>(bytes);
    crate::fuzzing::stable::<request::WaitResult>(bytes);
}
