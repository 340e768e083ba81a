//! A process's membership of a store, and transactions whose outcome is always found out.
//!
//! # Ambiguity
//! A transaction that timed out may have been applied, may not have been, or may be applied later by a server that was
//! slow. Guessing would lose or double a transition. So every transaction goes through a *slot* of the session, one at a
//! time per slot: it requires that the slot is unchanged since the last one, and writes itself into it.
//!
//! ```text
//!        transact                 yes ─▶ applied, slot = its version
//! Free ───────────▶ Under way ──┬ no  ─▶ not applied, slot as before
//!                               └ ?   ─▶ Unclear ──fence: write the slot, if it is unchanged──┬ yes ─▶ not applied, and never will be
//!                                          ▲                                                  ├ no  ─▶ read the slot: it tells that it was applied, and when
//!                                          └────────────────── ? (within the deadline) ───────┘
//! ```
//! If the deadline passes in `Unclear`, the caller is told so and the slot is never used again. Slots vanish with the
//! session; what was unclear then stays so, but the session is fenced anyway.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_core::{Clock, Deadline, Digest, Error, ErrorKind, Result, Retry};
use holdfast_custody::{SessionId, Version};
use parking_lot::Mutex;

use crate::credits::{Place, Purse, ReadAlong};
use crate::kv::{Applied, Condition, Kv, KvSession, Read, Snapshot, Transaction, Write};
use crate::layout::Layout;
use crate::memory::{Memory, Remembered};
use crate::notes::Notes;

/// A process's membership of a store. Dropping it lets it die by its time to live; [`Session::close`] ends it at once.
pub struct Session {
    kv: Box<dyn KvSession>,
    free: Mutex<Vec<Slot>>,
    next: AtomicU64,
    pub(crate) notes: Notes,
    memory: Memory,
    /// The store's budget, if it has one: reservations need credits then.
    pub(crate) budget: Option<u64>,
    /// Those of this session who reserve with credits and do not wait in the house, in the order in which they came.
    pub(crate) turn: tokio::sync::Mutex<Place>,
    /// The credits that it may spend, as far as is known here.
    pub(crate) purse: Purse,
    /// Who waits, as was read along with what this session has just done.
    pub(crate) read_along: ReadAlong,
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

/// One line of transactions, each after the one before.
#[derive(Debug)]
struct Slot {
    number: u64,
    version: Option<Version>,
}

impl Session {
    pub(crate) fn new(kv: Box<dyn KvSession>, budget: Option<u64>) -> Self {
        Self {
            kv,
            free: Mutex::default(),
            next: AtomicU64::new(0),
            notes: Notes::default(),
            memory: Memory::default(),
            budget,
            turn: tokio::sync::Mutex::default(),
            purse: Purse::default(),
            read_along: ReadAlong::default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.kv.id()
    }

    /// Whether, as far as is known here, it is alive.
    pub fn is_alive(&self) -> bool {
        self.kv.is_alive()
    }

    /// Pends until it has ended: from then on everything done in its name is refused.
    pub async fn ended(&self) {
        self.kv.ended().await;
    }

    /// Ends it now. Leases and reservations that it holds are taken back by the next sweep.
    pub async fn close(&self, within: Duration) -> Result<()> {
        self.kv.close(within).await
    }

    pub(crate) fn remember(&self, key: Digest, record: Remembered) {
        self.memory.put(key, record);
    }

    pub(crate) fn recall(&self, key: &str) -> Option<Remembered> {
        self.memory.take(key)
    }

    fn take_slot(&self) -> Slot {
        let used = self.free.lock().pop();
        used.unwrap_or_else(|| Slot {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            version: None,
        })
    }

    pub(crate) fn fenced(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Fenced, operation, "this session has ended; open another one").with("session", self.id())
    }
}

/// Sends transactions of a session and finds out how they ended.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) kv: Arc<dyn Kv>,
    pub(crate) layout: Layout,
    pub(crate) clock: Arc<dyn Clock>,
    operations: AtomicU64,
}

impl Sender {
    pub(crate) fn new(kv: Arc<dyn Kv>, layout: Layout, clock: Arc<dyn Clock>) -> Self {
        Self {
            kv,
            layout,
            clock,
            operations: AtomicU64::new(1),
        }
    }

    /// What a transaction of a session needs besides its own conditions and writes.
    pub(crate) const OVERHEAD: usize = 2;

    /// Applies a transaction in the name of a session, or finds out that it was not.
    pub(crate) async fn transact(
        &self,
        operation: &'static str,
        session: &Session,
        conditions: Vec<Condition>,
        writes: Vec<Write>,
        deadline: Deadline,
    ) -> Result<Applied> {
        let (applied, _) = self
            .transact_and_read(operation, session, conditions, writes, &[], deadline)
            .await?;
        Ok(applied)
    }

    /// As [`Sender::transact`]; what was read along is there unless the reply was lost, or the store does not do that.
    pub(crate) async fn transact_and_read(
        &self,
        operation: &'static str,
        session: &Session,
        mut conditions: Vec<Condition>,
        mut writes: Vec<Write>,
        reads: &[Read],
        deadline: Deadline,
    ) -> Result<(Applied, Option<Snapshot>)> {
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
            let answer = self.kv.transact(&transaction, within).await;
            answer.map(|applied| (applied, None))
        } else {
            self.kv.transact_and_read(&transaction, reads, within).await
        };
        let mut read = None;
        let applied = match answer {
            Err(error) if error.retry() == Retry::Ambiguous => {
                self.find_out(operation, session, &key, unchanged, &mark, deadline, error)
                    .await?
            }
            Err(error) => {
                // It was not applied and never will be, so the slot is as it was.
                session.free.lock().push(slot);
                return Err(error);
            }
            Ok((applied, snapshot)) => {
                read = snapshot;
                Outcome { applied, slot: None }
            }
        };
        slot.version = match applied {
            Outcome {
                slot: Some(version), ..
            }
            | Outcome {
                applied: Applied::Yes(version),
                ..
            } => Some(version),
            Outcome {
                applied: Applied::No,
                slot: None,
            } => slot.version,
        };
        session.free.lock().push(slot);
        Ok((applied.applied, read))
    }

    #[expect(clippy::too_many_arguments, reason = "the whole story of one transaction")]
    async fn find_out(
        &self,
        operation: &'static str,
        session: &Session,
        key: &str,
        unchanged: Condition,
        mark: &[u8],
        deadline: Deadline,
        mut last: Error,
    ) -> Result<Outcome> {
        let fence = Transaction {
            conditions: vec![unchanged, Condition::Present(self.layout.alive(session.id()))],
            writes: vec![Write::Put {
                key: key.to_owned(),
                value: Vec::new(),
                session: Some(session.id()),
            }],
        };
        while !deadline.passed(&*self.clock) {
            match self.kv.transact(&fence, deadline.remaining(&*self.clock)).await {
                Ok(Applied::Yes(version)) => {
                    return Ok(Outcome {
                        applied: Applied::No,
                        slot: Some(version),
                    });
                }
                Ok(Applied::No) => match self.read_slot(session, key, deadline).await {
                    Ok(Some((value, version))) if value == mark => {
                        return Ok(Outcome {
                            applied: Applied::Yes(version),
                            slot: None,
                        });
                    }
                    // A fence of ours whose reply was lost as well.
                    Ok(Some((value, version))) if value.is_empty() => {
                        return Ok(Outcome {
                            applied: Applied::No,
                            slot: Some(version),
                        });
                    }
                    Ok(_) => return Err(session.fenced(operation).with_retry(Retry::Ambiguous)),
                    Err(error) => last = error,
                },
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    return Err(session.fenced(operation).with_retry(Retry::Ambiguous));
                }
                Err(error) => last = error,
            }
        }
        Err(Error::unavailable(
            operation,
            "the index did not say within the deadline whether the change was made; read back",
        )
        .with_retry(Retry::Ambiguous)
        .caused_by(last))
    }

    async fn read_slot(&self, session: &Session, key: &str, deadline: Deadline) -> Result<Option<(Vec<u8>, Version)>> {
        let reads = [Read::Key(key.to_owned()), Read::Key(self.layout.alive(session.id()))];
        let snapshot = self.kv.read(&reads, deadline.remaining(&*self.clock)).await?;
        let mut entries = snapshot.entries.into_iter();
        let slot = entries.next().and_then(|entries| entries.into_iter().next());
        Ok(slot.map(|entry| (entry.value, entry.version)))
    }
}

/// How a transaction ended, and the version of its slot if that is another than the transaction's.
struct Outcome {
    applied: Applied,
    slot: Option<Version>,
}
