//! This process's membership of the store: its session, and a new one after it was lost.
//!
//! ```text
//!          open                the index ended it (silence, an operator)          the next new operation
//! (none) ────────▶ current ───────────────────────────────────────────▶ ended ──────────────────────────▶ current (another)
//! ```
//!
//! A process that was silent for too long loses its session, and with it everything it held: reservations, leases.
//! Those stay lost; their tokens are fenced for ever. But the process itself is not: the next operation that holds
//! nothing yet (a put, a lease, a sweep) opens another session. So a run of days survives a network outage of a minute.
//!
//! A holder of a lease or a reservation keeps the session that it was granted to, and presents only that one.
//!
//! A store that is closing opens another session only to complete what runs and to free what was retired; no take gets one
//! (module `take`). Once it has ended its session none is opened any more, and one that is being opened at that moment is
//! ended at once: no task could answer for what it would hold.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result};
use tensorhold_custody::SessionId;
use tensorhold_index::{Index, Session, SessionEnded};

use super::tasks::closed;

#[derive(Debug)]
pub(crate) struct Sessions {
    index: Arc<dyn Index>,
    clock: Arc<dyn Clock>,
    current: RwLock<Option<Arc<Session>>>,
    /// One task opens a session at a time; the others use the session that it opened.
    opening: tokio::sync::Mutex<()>,
    opened: AtomicU64,
    /// Whether the membership has ended. A session becomes current only while it has not, both under the lock of `current`.
    ended: AtomicBool,
    /// The sessions that were opened last, the current one included.
    ours: RwLock<VecDeque<SessionId>>,
}

/// The most sessions that are remembered. It bounds memory; hardly any process loses so many.
const MOST_REMEMBERED: usize = 4096;

impl Sessions {
    pub(crate) fn new(index: Arc<dyn Index>, clock: Arc<dyn Clock>) -> Self {
        Self {
            index,
            clock,
            current: RwLock::new(None),
            opening: tokio::sync::Mutex::default(),
            opened: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            ours: RwLock::default(),
        }
    }

    /// The current session, if it is alive as far as this process knows.
    pub(crate) fn known(&self) -> Option<Arc<Session>> {
        self.current.read().clone().filter(|session| session.is_alive())
    }

    /// How many sessions were opened, the first included.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Whether this process has, or had, that session.
    pub(crate) fn was_ours(&self, session: SessionId) -> bool {
        self.ours.read().contains(&session)
    }

    /// Makes a session the current one, unless the membership has ended.
    fn make_current(&self, session: &Arc<Session>) -> bool {
        let mut current = self.current.write();
        let has_ended = self.ended.load(Ordering::Relaxed);
        if !has_ended {
            *current = Some(Arc::clone(session));
        }
        !has_ended
    }

    /// A session for a new operation: the current one, or another if that has ended.
    pub(crate) async fn current(&self, operation: &'static str, deadline: Deadline) -> Result<Arc<Session>> {
        if let Some(session) = self.known() {
            return Ok(session);
        }
        let late = || {
            Error::unavailable(
                operation,
                "the index did not give this process a session within the deadline; check that etcd is reachable, and try again",
            )
        };
        let left = deadline.remaining(&*self.clock);
        let _turn = tokio::time::timeout(left, self.opening.lock())
            .await
            .map_err(|_| late())?;
        if let Some(session) = self.known() {
            return Ok(session);
        }
        if self.ended.load(Ordering::Relaxed) {
            return Err(closed(operation));
        }
        let session = Arc::new(self.index.open_session(deadline.remaining(&*self.clock)).await?);
        {
            let mut ours = self.ours.write();
            if ours.len() >= MOST_REMEMBERED {
                ours.pop_front();
            }
            ours.push_back(session.id());
        }
        if !self.make_current(&session) {
            if let Err(error) = session.close(deadline.remaining(&*self.clock)).await {
                tracing::debug!(%error, "a session that was not needed any more ends by its time to live");
            }
            return Err(closed(operation));
        }
        if self.opened.fetch_add(1, Ordering::Relaxed) > 0 {
            tracing::warn!(session = %session.id(), "the session had ended; what it held is lost, another is open");
        }
        Ok(session)
    }

    /// Records that the index refused a session as ended, although it seemed alive here. Returns whether it did.
    pub(crate) fn refused(&self, session: &Arc<Session>, error: &Error) -> bool {
        let ended = error.kind() == ErrorKind::Fenced
            && (!session.is_alive() || error.cause() == Some(&SessionEnded(session.id())));
        if ended {
            let mut current = self.current.write();
            if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, session)) {
                *current = None;
            }
        }
        ended
    }

    /// Ends the membership.
    pub(crate) async fn close(&self, deadline: Deadline) -> Result<()> {
        let session = {
            let mut current = self.current.write();
            self.ended.store(true, Ordering::Relaxed);
            current.take()
        };
        match session {
            Some(session) if session.is_alive() => session.close(deadline.remaining(&*self.clock)).await,
            _ => Ok(()),
        }
    }
}
