//! A process's membership of a store, and transactions whose outcome is always established.
//!
//! # Ambiguity
//! A transaction that timed out may have been applied, may not have been, or may be applied later by a slow server.
//! Guessing would lose or duplicate a state transition. So every transaction goes through a *slot* of the session, one
//! at a time per slot: it requires that the slot is unchanged since the transaction before, and writes its own mark
//! into it.
//!
//! ```text
//!        transact                 yes ─▶ applied, slot = its version
//! Free ───────────▶ In flight ──┬ no  ─▶ not applied, slot as before
//!                               └ ?   ─▶ Ambiguous ──fence: write the slot if unchanged──┬ yes ─▶ not applied, and never will be
//!                                           ▲                                            ├ no  ─▶ read the slot: its mark says that it was applied, and when
//!                                           └───────────── ? (within the deadline) ──────┘
//! ```
//! If the deadline passes while the outcome is ambiguous, the caller gets an ambiguous error and the slot is never used
//! again. Slots vanish with the session. An outcome that is ambiguous at that moment stays so, but the session is
//! fenced anyway.
//!
//! # A full store
//! A store that reports that it is full has answered: the transaction was applied (etcd notices only while applying one
//! that its space quota is used up), or it never will be. Nothing is in flight, so no fence is needed, and a full store
//! would refuse one. The slot is read instead. If it shows the transaction's mark, the transaction was applied. If it
//! is unchanged, the transaction was refused (`Capacity`), and the slot can be used for the next one.
//!
//! If the reply was lost *and* the fence met a full store, the fence has been answered and the transaction has not. As
//! long as the slot is unchanged, the outcome stays ambiguous, and the fence is retried until the deadline (`Capacity`,
//! `Ambiguous`; that slot is retired).
//!
//! # A slot that has changed unexpectedly
//! Only its session writes a slot. After several refused transactions in a row, the slot is read. If it is as this
//! session left it, the transactions' other conditions did not hold. Otherwise the index has lost what this session
//! wrote (it was restored to an earlier state), and the session is over: it is fenced for good.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Digest, Error, ErrorKind, Result, Retry, SampleId};
use tensorhold_custody::{SessionId, Version};

use crate::record::ahead::name_ahead;
use crate::record::grants::SessionGrants;
use crate::record::layout::Layout;
use crate::store::{Condition, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write, is_full};
use crate::txn::record_cache::{CachedRecord, RecordCache};

/// A process's membership of a store. A dropped session ends when its time to live runs out; closing it ends it at once.
pub struct Session(Arc<SessionState>);

impl Deref for Session {
    type Target = SessionState;

    fn deref(&self) -> &SessionState {
        &self.0
    }
}

/// What a session knows of itself.
pub struct SessionState {
    store_session: Box<dyn StoreSession>,
    free: Mutex<Vec<Slot>>,
    next: AtomicU64,
    pub(crate) grants: SessionGrants,
    records: RecordCache,
    /// Whether the store had a budget when the session began: then its reservations need quota.
    pub(crate) needs_quota: bool,
    /// How many names were given to reservations made ahead.
    names: AtomicU64,
    /// Watches what this session is told when it waits for quota; opened at its first wait, and kept.
    pub(crate) told: tokio::sync::Mutex<Option<Box<dyn Watch>>>,
    /// Whether the index has lost what this session wrote.
    lost: tokio::sync::watch::Sender<bool>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Session({}{})",
            self.id(),
            if self.is_alive() { "" } else { ", ended" }
        )
    }
}

/// A sequence of transactions, at most one of them in flight.
#[derive(Debug)]
struct Slot {
    number: u64,
    version: Option<Version>,
    /// How many transactions in a row were not applied.
    refusals: u32,
}

impl Session {
    pub(crate) fn new(store_session: Box<dyn StoreSession>, needs_quota: bool) -> Self {
        Self(Arc::new(SessionState {
            store_session,
            free: Mutex::default(),
            next: AtomicU64::new(0),
            grants: SessionGrants::default(),
            records: RecordCache::default(),
            needs_quota,
            names: AtomicU64::new(0),
            told: tokio::sync::Mutex::default(),
            lost: tokio::sync::watch::Sender::new(false),
        }))
    }

    /// Whether this session's reservations need quota: the store had a budget when the session began.
    pub fn needs_quota(&self) -> bool {
        self.needs_quota
    }

    /// A name for a reservation that is made ahead. No other reservation has it, and hardly any sample: if one has, the
    /// reservation is refused.
    pub fn name_ahead(&self) -> Result<SampleId> {
        name_ahead(self.id(), self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// The same session, for a task that may outlive the call that began it.
    pub(crate) fn handle(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl SessionState {
    /// The session's id.
    pub fn id(&self) -> SessionId {
        self.store_session.id()
    }

    /// Whether the session is alive, as far as this process knows.
    pub fn is_alive(&self) -> bool {
        self.store_session.is_alive() && !*self.lost.borrow()
    }

    /// Pends until the session has ended. From then on every call in its name is refused.
    pub async fn ended(&self) {
        let mut lost = self.lost.subscribe();
        tokio::select! {
            () = self.store_session.ended() => {}
            // The sender lives in `self`, so this cannot fail.
            _ = lost.wait_for(|lost| *lost) => {}
        }
    }

    /// Ends the session now. The next sweep takes back the leases and reservations that it holds.
    pub async fn close(&self, within: Duration) -> Result<()> {
        self.store_session.close(within).await
    }

    pub(crate) fn remember(&self, key: Digest, record: CachedRecord) {
        self.records.put(key, record);
    }

    pub(crate) fn recall(&self, key: &str) -> Option<CachedRecord> {
        self.records.take(key)
    }

    fn take_slot(&self) -> Slot {
        let used = self.free.lock().pop();
        used.unwrap_or_else(|| Slot {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            version: None,
            refusals: 0,
        })
    }

    pub(crate) fn fenced(&self, operation: &'static str) -> Error {
        self.ended_error(operation, "this session has ended; open another one")
    }

    fn ended_error(&self, operation: &'static str, message: &str) -> Error {
        Error::new(ErrorKind::Fenced, operation, message)
            .with("session", self.id())
            .caused_by(SessionEnded(self.id()))
    }
}

/// The cause of an error that says that a session has ended, and not only a lease of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEnded(pub SessionId);

impl fmt::Display for SessionEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {} has ended", self.0)
    }
}

impl std::error::Error for SessionEnded {}

/// Sends the transactions of sessions and establishes how they ended.
#[derive(Debug)]
pub(crate) struct SlotClient {
    pub(crate) txn_store: Arc<dyn TxnStore>,
    pub(crate) layout: Layout,
    pub(crate) clock: Arc<dyn Clock>,
    operations: AtomicU64,
    /// The latest version of the store that this process has seen.
    latest: AtomicU64,
}

impl SlotClient {
    pub(crate) fn new(txn_store: Arc<dyn TxnStore>, layout: Layout, clock: Arc<dyn Clock>) -> Self {
        Self {
            txn_store,
            layout,
            clock,
            operations: AtomicU64::new(1),
            latest: AtomicU64::new(0),
        }
    }

    /// The store was seen at this version.
    pub(crate) fn saw(&self, version: Version) {
        self.latest.fetch_max(version.0, Ordering::Relaxed);
    }

    /// The latest version of the store that this process has seen: the clock by which the ages of waiters are
    /// compared.
    pub(crate) fn latest(&self) -> Version {
        Version(self.latest.load(Ordering::Relaxed))
    }

    /// How many conditions a transaction of a session needs besides its own: the slot and the liveness key.
    pub(crate) const OVERHEAD: usize = 2;

    /// Applies a transaction in the name of a session, or establishes that it was not applied.
    pub(crate) async fn transact(
        &self,
        operation: &'static str,
        session: &Session,
        conditions: Vec<Condition>,
        writes: Vec<Write>,
        deadline: Deadline,
    ) -> Result<TxnOutcome> {
        let (applied, _) = self
            .transact_and_read(operation, session, conditions, writes, &[], deadline)
            .await?;
        Ok(applied)
    }

    /// As [`SlotClient::transact`], with reads in the same transaction. No snapshot is returned if the reply was lost or
    /// the store does not support this.
    pub(crate) async fn transact_and_read(
        &self,
        operation: &'static str,
        session: &Session,
        mut conditions: Vec<Condition>,
        mut writes: Vec<Write>,
        reads: &[Read],
        deadline: Deadline,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        if !session.is_alive() {
            return Err(session.fenced(operation));
        }
        let mut slot = session.take_slot();
        let key = self.layout.slot(session.id(), slot.number);
        let mark = self.operations.fetch_add(1, Ordering::Relaxed).to_be_bytes().to_vec();
        let unchanged = match slot.version {
            Some(version) => Condition::Unchanged(key.clone(), version),
            None => Condition::Absent(key.clone()),
        };
        conditions.push(unchanged.clone());
        conditions.push(Condition::Present(self.layout.alive(session.id())));
        writes.push(Write::Put {
            key: key.clone(),
            value: mark.clone(),
            session: Some(session.id()),
        });

        let transaction = Transaction { conditions, writes };
        let within = deadline.remaining(&*self.clock);
        let answer = if reads.is_empty() {
            let answer = self.txn_store.transact(&transaction, within).await;
            answer.map(|applied| (applied, None))
        } else {
            self.txn_store.transact_and_read(&transaction, reads, within).await
        };
        let mut read = None;
        let outcome = match answer {
            Err(error) if error.retry() == Retry::Ambiguous => {
                let sent = Sent {
                    session,
                    key: &key,
                    before: slot.version,
                    mark: &mark,
                };
                // If the outcome stays ambiguous, this returns, `slot` is dropped, and no transaction uses it again.
                self.resolve_ambiguous(operation, &sent, unchanged, deadline, error)
                    .await?
            }
            // It was not applied and never will be, so the slot is unchanged.
            Err(error) => Outcome::Refused(error),
            Ok((applied, snapshot)) => {
                read = snapshot;
                Outcome::Known(applied)
            }
        };
        let applied = match outcome {
            Outcome::Refused(error) => {
                session.free.lock().push(slot);
                return Err(error);
            }
            Outcome::FencedAt(version) => {
                slot.version = Some(version);
                TxnOutcome::Rejected
            }
            Outcome::Known(TxnOutcome::Committed(version)) => {
                self.saw(version);
                slot.version = Some(version);
                slot.refusals = 0;
                TxnOutcome::Committed(version)
            }
            Outcome::Known(TxnOutcome::Rejected) => {
                slot.refusals = slot.refusals.saturating_add(1);
                if slot.refusals >= SUSPICIOUS && slot.refusals.is_power_of_two() {
                    let sent = Sent {
                        session,
                        key: &key,
                        before: slot.version,
                        mark: &mark,
                    };
                    self.is_as_left(operation, &sent, deadline).await?;
                }
                TxnOutcome::Rejected
            }
        };
        session.free.lock().push(slot);
        Ok((applied, read))
    }

    async fn resolve_ambiguous(
        &self,
        operation: &'static str,
        sent: &Sent<'_>,
        unchanged: Condition,
        deadline: Deadline,
        mut last: Error,
    ) -> Result<Outcome> {
        let fence = Transaction {
            conditions: vec![unchanged, Condition::Present(self.layout.alive(sent.session.id()))],
            writes: vec![Write::Put {
                key: sent.key.to_owned(),
                value: Vec::new(),
                session: Some(sent.session.id()),
            }],
        };
        let ended = || sent.session.fenced(operation).with_retry(Retry::Ambiguous);
        // A store that reports that it is full has answered: see the module documentation.
        let refused_as_full = is_full(&last).then(|| last.clone());
        let mut pause = FIRST_PAUSE;
        while !deadline.passed(&*self.clock) {
            let fenced = match &refused_as_full {
                Some(_) => None,
                None => Some(self.txn_store.transact(&fence, deadline.remaining(&*self.clock)).await),
            };
            let fence_is_full = match fenced {
                Some(Ok(TxnOutcome::Committed(version))) => return Ok(Outcome::FencedAt(version)),
                Some(Err(error)) if error.kind() == ErrorKind::Fenced => return Err(ended()),
                Some(Err(error)) if !is_full(&error) => {
                    last = error;
                    // Refusals may come at once, many in a row: back off.
                    pause_before_next(&mut pause, self.clock.as_ref(), deadline).await;
                    continue;
                }
                Some(Err(error)) => {
                    last = error;
                    true
                }
                Some(Ok(TxnOutcome::Rejected)) | None => false,
            };
            match self.look_at(sent, deadline).await {
                Ok(Shown::Mark(version)) => return Ok(Outcome::Known(TxnOutcome::Committed(version))),
                // A fence of ours whose reply was lost too, or that was answered with "full".
                Ok(Shown::Fence(version)) => return Ok(Outcome::FencedAt(version)),
                Ok(Shown::AsBefore) => match &refused_as_full {
                    Some(error) => return Ok(Outcome::Refused(error.clone().with_retry(Retry::Safe))),
                    None if fence_is_full => {}
                    None => return Err(ended()),
                },
                Ok(Shown::Gone) => return Err(ended()),
                Err(error) => last = error,
            }
            pause_before_next(&mut pause, self.clock.as_ref(), deadline).await;
        }
        let kind = if is_full(&last) || refused_as_full.is_some() {
            ErrorKind::Capacity
        } else {
            ErrorKind::Unavailable
        };
        Err(Error::new(
            kind,
            operation,
            "the deadline passed before the index said whether the change was made; read back before trying again",
        )
        .with_retry(Retry::Ambiguous)
        .caused_by(last))
    }

    /// Verifies that a slot is as this session left it. If it is not, the session is over.
    async fn is_as_left(&self, operation: &'static str, sent: &Sent<'_>, deadline: Deadline) -> Result<()> {
        if matches!(self.look_at(sent, deadline).await?, Shown::AsBefore) {
            return Ok(());
        }
        if sent.session.is_alive() {
            sent.session.lost.send_replace(true);
            tracing::error!(session = %sent.session.id(), "the index has lost what this session wrote: was it restored?");
        }
        let message = "the index has lost what this session wrote: it was put back to an earlier state, or the session has \
                       ended; open another one";
        Err(sent.session.ended_error(operation, message))
    }

    /// Reads the slot of a transaction, to establish what became of that transaction.
    async fn look_at(&self, sent: &Sent<'_>, deadline: Deadline) -> Result<Shown> {
        let alive = self.layout.alive(sent.session.id());
        let reads = [Read::Key(sent.key.to_owned()), Read::Key(alive)];
        let snapshot = self.txn_store.read(&reads, deadline.remaining(&*self.clock)).await?;
        let mut entries = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
        let (slot, alive) = (entries.next().flatten(), entries.next().flatten());
        Ok(match slot {
            Some(entry) if entry.value == sent.mark => Shown::Mark(entry.version),
            _ if alive.is_none() => Shown::Gone,
            slot if slot.as_ref().map(|entry| entry.version) == sent.before => Shown::AsBefore,
            Some(entry) if entry.value.is_empty() => Shown::Fence(entry.version),
            _ => Shown::Gone,
        })
    }
}

/// After this many refusals in a row the slot is read, and again each time their number has doubled. One refusal says
/// little: the transaction's other conditions may not have held.
const SUSPICIOUS: u32 = 4;

/// Backoff between attempts to establish an ambiguous outcome: the first pause, doubled each time up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A transaction that was sent and whose outcome is to be established.
struct Sent<'a> {
    session: &'a Session,
    /// The key of its slot, and the slot's version before it.
    key: &'a str,
    before: Option<Version>,
    mark: &'a [u8],
}

/// What a slot shows about a transaction.
enum Shown {
    /// The transaction's mark: it was applied at this version.
    Mark(Version),
    /// A fence, written at this version: the transaction will never be applied.
    Fence(Version),
    /// The slot is unchanged.
    AsBefore,
    /// None of these: the session has ended.
    Gone,
}

/// How a transaction ended.
enum Outcome {
    /// The store said so.
    Known(TxnOutcome),
    /// It was not applied and never will be, because a fence wrote its slot at this version.
    FencedAt(Version),
    /// It was not applied and never will be, for this reason.
    Refused(Error),
}

/// Sleeps, and doubles the next pause.
async fn pause_before_next(pause: &mut Duration, clock: &dyn Clock, deadline: Deadline) {
    tokio::time::sleep((*pause).min(deadline.remaining(clock))).await;
    *pause = (2 * *pause).min(LONGEST_PAUSE);
}
