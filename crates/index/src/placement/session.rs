//! A session of a store that may be moved: it keeps its id, and goes on at the cluster that the store was moved to.
//!
//! ```text
//!            the store is moved: resumed there        it has ended there, or could not be resumed in time
//!   kept ─────────────────────────────────────▶ kept ─────────────────────────────────────────────────────▶ ended
//! ```
//!
//! A session that has no key yet is not known where the store was moved to: it has ended.
//!
//! One that is closed while the store is frozen may be known at the other cluster already: it is closed there, too.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Deadline, ErrorKind, Result};
use tensorhold_custody::SessionId;

use super::follow::Shared;
use crate::store::{MovableStore, StoreSession};

/// The session, shared by its holder and by the store that follows a move.
#[derive(Debug)]
pub(super) struct Kept {
    id: SessionId,
    pub(super) time_to_live: Duration,
    /// The session on the cluster that the store is on.
    current: tokio::sync::watch::Sender<Arc<dyn StoreSession>>,
}

impl Kept {
    pub(super) fn new(session: Box<dyn StoreSession>, time_to_live: Duration) -> Arc<Self> {
        Arc::new(Self {
            id: session.id(),
            time_to_live,
            current: tokio::sync::watch::Sender::new(Arc::from(session)),
        })
    }

    fn now(&self) -> Arc<dyn StoreSession> {
        Arc::clone(&self.current.borrow())
    }

    pub(super) fn is_alive(&self) -> bool {
        self.now().is_alive()
    }

    /// Ends it on a cluster where a mover may have made it known.
    async fn end_at(&self, cluster: &dyn MovableStore, within: Duration) -> Result<()> {
        match cluster.resume_session(self.id, self.time_to_live, within).await {
            Ok(resumed) => resumed.close(within).await,
            Err(error) if error.kind() == ErrorKind::Fenced => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Keeps it alive on another cluster. If it has ended there, it has ended.
    pub(super) async fn resume(&self, cluster: &dyn MovableStore, within: Duration) -> Result<()> {
        let resumed: Arc<dyn StoreSession> = match cluster.resume_session(self.id, self.time_to_live, within).await {
            Ok(resumed) => Arc::from(resumed),
            Err(error) if error.kind() == ErrorKind::Fenced => {
                tracing::warn!(session = %self.id, "a session has ended while its store was moved");
                Arc::new(Ended(self.id))
            }
            Err(error) => return Err(error),
        };
        // The one before is dropped, and ends at its cluster by its time to live: nobody asks there any more.
        self.current.send_replace(resumed);
        Ok(())
    }
}

/// A session that was not there any more when its store had arrived.
#[derive(Debug)]
struct Ended(SessionId);

#[async_trait]
impl StoreSession for Ended {
    fn id(&self) -> SessionId {
        self.0
    }

    async fn ended(&self) {}

    fn is_alive(&self) -> bool {
        false
    }

    async fn close(&self, _within: Duration) -> Result<()> {
        Ok(())
    }
}

/// The holder's side.
#[derive(Debug)]
pub(super) struct FollowingSession {
    pub(super) kept: Arc<Kept>,
    pub(super) store: Arc<Shared>,
}

#[async_trait]
impl StoreSession for FollowingSession {
    fn id(&self) -> SessionId {
        self.kept.id
    }

    async fn ended(&self) {
        let mut current = self.kept.current.subscribe();
        loop {
            let session = Arc::clone(&current.borrow_and_update());
            tokio::select! {
                // The sender lives in `self`, so this cannot fail.
                _ = current.changed() => {}
                () = session.ended() => {
                    if !current.has_changed().unwrap_or(false) {
                        return;
                    }
                }
            }
        }
    }

    fn is_alive(&self) -> bool {
        self.kept.is_alive()
    }

    async fn close(&self, within: Duration) -> Result<()> {
        let (kept, store) = (&self.kept, &self.store);
        let deadline = Deadline::after(&*store.clock, within);
        let mut residence = store.residence();
        kept.now().close(store.left(deadline)).await?;
        // A mover that freezes the store from now on does not find it; one that has frozen it may have.
        while store.is_away(&residence, deadline).await? {
            store.leave(&residence, deadline).await?;
            residence = store.residence();
            kept.end_at(&*residence.store, store.left(deadline)).await?;
        }
        Ok(())
    }
}
