//! A session: a lease of etcd, and the task that keeps it alive.
//!
//! ```text
//!                     keep-alive answered: heard = when it was SENT
//!                       ┌──────────┐
//!   grant ──▶ alive ────┴──────────┘
//!               │  heard + time to live has passed · etcd says that the lease is gone · close
//!               ▼
//!             ended   (for good: nothing leads back)
//! ```
//!
//! **Never reported alive for too long.** etcd counts the time to live from when it handles a keep-alive; the session
//! counts from when it sent it, so the session ends first. [`EtcdSession::is_alive`] asks the clock itself: a process
//! that was stopped for a minute knows that it is fenced before any of its tasks has run. (The clock is the monotonic
//! one, which stands still while the whole machine sleeps; the fencing in the store does not.)
//!
//! **The keeper** sends a keep-alive every third of the time to live. A failed keep-alive is sent again, to other
//! nodes, until it is answered or the time is over. Each one uses its own stream, so no state can be left over from a
//! node that is gone. The session owns the keeper: dropping the session aborts it, closing the session waits for its
//! end.
//!
//! Each keep-alive also checks the epoch ([`crate::history`]): even an idle process learns within a third of a time to
//! live that etcd was put back or replaced. Its sessions end at once then.
//!
//! A lease grant may be sent twice, if its first answer is lost: the lease that no process knows of expires by itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, ErrorKind, Result, Timestamp};
use tensorhold_custody::SessionId;
use tensorhold_index::store::StoreSession;
use tokio::task::JoinHandle;

use crate::convert;
use crate::dial::Link;
use crate::history::{Plain, Since};
use crate::pool::{Call, Nature, Pool};

/// How many keep-alives are sent within one time to live.
const BEATS: u32 = 3;

/// A session. Dropping it aborts the keeper: the session ends by its time to live.
#[derive(Debug)]
pub(crate) struct EtcdSession {
    life: Arc<Life>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the session and its keeper share.
#[derive(Debug)]
struct Life {
    pool: Arc<Pool>,
    id: SessionId,
    lease: i64,
    time_to_live: Duration,
    /// The history that this session belongs to.
    since: Since,
    /// When the last answered keep-alive was sent.
    heard: Mutex<Timestamp>,
    over: tokio::sync::watch::Sender<bool>,
}

impl EtcdSession {
    pub(crate) async fn open(pool: Arc<Pool>, time_to_live: Duration, call: Call) -> Result<Self> {
        let sent = Mutex::new(pool.clock.now());
        let request = |mut link: Link, _| {
            *sent.lock() = pool.clock.now();
            async move { link.lease.grant(whole_seconds(time_to_live), None).await }
        };
        let (granted, since) = pool.call(call, request).await?;
        // The time of the last try, which is the one that was answered.
        let sent = *sent.lock();
        let seconds = u64::try_from(granted.ttl()).map_err(|_| convert::strange("a negative time to live"))?;
        let (lease, time_to_live) = (granted.id(), Duration::from_secs(seconds));
        let life = Arc::new(Life {
            id: convert::session(lease)?,
            lease,
            time_to_live,
            heard: Mutex::new(sent),
            over: tokio::sync::watch::Sender::new(false),
            since,
            pool,
        });
        let keeper = tokio::spawn(Arc::clone(&life).keep());
        Ok(Self {
            life,
            keeper: Mutex::new(Some(keeper)),
        })
    }
}

/// etcd counts in seconds, so the time is rounded up: a session lives longer than requested rather than shorter.
fn whole_seconds(time: Duration) -> i64 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

impl Life {
    fn clock(&self) -> &dyn Clock {
        self.pool.clock.as_ref()
    }

    /// For how much longer etcd cannot have ended the session for want of a keep-alive.
    fn left(&self) -> Duration {
        let ends = self.heard.lock().after(self.time_to_live);
        ends.since(self.clock().now())
    }

    fn is_alive(&self) -> bool {
        !*self.over.borrow() && !self.left().is_zero() && self.pool.history.is_since(&self.since)
    }

    fn end(&self, why: &str) {
        if !self.over.send_replace(true) {
            tracing::debug!(session = %self.id, why, "a session ended");
        }
    }

    /// The keeper.
    async fn keep(self: Arc<Self>) {
        let beat = self.time_to_live / BEATS;
        let mut cuts = self.pool.history.cuts();
        loop {
            let since = self.clock().now().since(*self.heard.lock());
            tokio::time::timeout(beat.saturating_sub(since), cuts.changed())
                .await
                .ok();
            if !self.pool.history.is_since(&self.since) {
                return self.end("etcd was restored or replaced");
            }
            match self.keep_alive(beat).await {
                Ok(sent) => {
                    *self.heard.lock() = sent;
                    self.look_at_epoch(beat).await;
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => return self.end("no node answered in time"),
                Err(error) if error.kind() == ErrorKind::Fenced => return self.end("etcd has ended it"),
                Err(error) => {
                    tracing::warn!(session = %self.id, ?error, "a session cannot be kept");
                    return self.end("etcd refuses to keep it");
                }
            }
        }
    }

    /// Checks whether etcd is still in our epoch. If it cannot be read now, the next keep-alive checks again.
    async fn look_at_epoch(&self, patience: Duration) {
        let patience = patience.min(self.pool.config.try_timeout);
        let call = Call {
            operation: "etcd.epoch",
            nature: Nature::Repeatable,
            deadline: Deadline::after(self.clock(), patience / 2),
            patience: patience / 2,
        };
        if let Err(error) = self.pool.look_at_epoch(call).await {
            tracing::debug!(session = %self.id, %error, "the epoch was not read");
        }
    }

    /// Sends keep-alives until one is answered or it is too late. Returns when the answered one was sent.
    async fn keep_alive(&self, patience: Duration) -> Result<Timestamp> {
        let call = Call {
            operation: "etcd.keep_alive",
            nature: Nature::Repeatable,
            deadline: Deadline::after(self.clock(), self.left()),
            patience: patience.min(self.pool.config.try_timeout),
        };
        let request = |mut link: Link, _| {
            let (sent, lease) = (self.clock().now(), self.lease);
            async move { link.lease.keep_alive(lease).await.map(|_stream| Plain(sent)) }
        };
        let (Plain(sent), _) = self.pool.call(call, request).await?;
        Ok(sent)
    }
}

#[async_trait]
impl StoreSession for EtcdSession {
    fn id(&self) -> SessionId {
        self.life.id
    }

    async fn ended(&self) {
        let mut over = self.life.over.subscribe();
        let mut cuts = self.life.pool.history.cuts();
        while self.life.is_alive() {
            // Either way, check again: the clock ends the session even if its keeper no longer runs.
            let told = async {
                tokio::select! {
                    _ = over.wait_for(|over| *over) => {}
                    _ = cuts.changed() => {}
                }
            };
            tokio::time::timeout(self.life.left(), told).await.ok();
        }
    }

    fn is_alive(&self) -> bool {
        self.life.is_alive()
    }

    async fn close(&self, within: Duration) -> Result<()> {
        let life = &self.life;
        let deadline = Deadline::after(life.clock(), within);
        life.end("closed");
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper {
            keeper.abort();
            // The task ends at its next await; whether it was aborted or had ended makes no difference.
            tokio::time::timeout(deadline.remaining(life.clock()), keeper)
                .await
                .ok();
        }
        let call = Call {
            operation: "kv.close_session",
            nature: Nature::Repeatable,
            deadline,
            patience: life.pool.config.try_timeout,
        };
        let request = |mut link: Link, _| async move { link.lease.revoke(life.lease).await };
        match life.pool.call(call, request).await {
            Err(error) if error.kind() != ErrorKind::Fenced => Err(error),
            _ended_now_or_before => Ok(()),
        }
    }
}

impl Drop for EtcdSession {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_never_shortened() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(5)), 5);
        assert_eq!(whole_seconds(Duration::from_millis(5001)), 6);
        assert_eq!(whole_seconds(Duration::MAX), i64::MAX);
    }
}
