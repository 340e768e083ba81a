//! A watch that outlives its node.
//!
//! ```text
//!   watching ──message──▶ tell changes; next = their version + 1
//!      ▲  │   ──progress─▶ next = its version + 1
//!      │  ├─ silent for a probe ──▶ ask for progress ──▶ silent again ─┐
//!      │  ├─ the stream broke, or its node has no leader ──────────────┤
//!      │  └─ "compacted" ──▶ error NotFound                            ▼
//!      └──────────────── opened elsewhere, from `next` ◀──────────── lost ──too long──▶ error Unavailable
//! ```
//!
//! etcd delivers the changes of a version together and in order, so a watch resumes at the version after the last one
//! delivered. Progress ("all up to here has been delivered") moves that point on while nothing changes; otherwise a
//! quiet watch would fall behind the compaction and could not resume. Asking for progress also detects a node that no
//! longer responds.
//!
//! Nothing runs in the background: all of it happens in [`Watch::next`], and cancelling a call of it loses nothing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{WatchOptions, WatchResponse, WatchStream};
use futures_util::future::BoxFuture;
use tensorhold_core::{Deadline, Error, Result, Timestamp};
use tensorhold_custody::Version;
use tensorhold_index::store::{Change, Watch};

use crate::convert::Names;
use crate::dial::Link;
use crate::history::{Plain, Since};
use crate::outcome::{Failure, forgotten, judge};
use crate::pool::{Call, Nature, Pool};

const OPERATION: &str = "kv.watch";
/// The pause before a stream that was lost at once is opened again.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct EtcdWatch {
    pool: Arc<Pool>,
    names: Names,
    /// The history whose changes it delivers.
    since: Since,
    cuts: tokio::sync::watch::Receiver<u64>,
    keys: Range<Vec<u8>>,
    /// The first revision that has not been delivered yet.
    next: i64,
    live: Option<Live>,
    /// A stream that is being opened in place of one that was lost. A call of [`Watch::next`] that is cancelled leaves it, and
    /// the next call goes on with it.
    opening: Option<BoxFuture<'static, Result<Live>>>,
    /// Since when no stream has delivered anything, if the last one was lost.
    lost: Option<Timestamp>,
}

/// An open stream, and its node.
struct Live {
    stream: WatchStream,
    node: usize,
    serial: u64,
    heard: Timestamp,
    /// When progress was requested since then, if it was.
    asked: Option<Timestamp>,
}

impl EtcdWatch {
    pub(crate) async fn open(
        pool: Arc<Pool>,
        names: Names,
        keys: &Range<String>,
        after: Version,
        call: Call,
    ) -> Result<Self> {
        let keys = names.range(keys);
        let cuts = pool.history.cuts();
        let since = pool.history.begin(OPERATION)?;
        // The changes after a version of a history that is gone cannot be known.
        let after = since.epoch.revision(after).and_then(|after| i64::try_from(after).ok());
        let next = after.ok_or_else(|| forgotten(OPERATION))?.saturating_add(1);
        let live = stream(&pool, &keys, next, call).await?;
        Ok(Self {
            pool,
            names,
            since,
            cuts,
            keys,
            next,
            live: Some(live),
            opening: None,
            lost: None,
        })
    }

    /// Opens a stream in place of one that was lost, as long as the patience (`watch_patience`) lasts.
    async fn reopen(&mut self) -> Result<()> {
        let opening = match &mut self.opening {
            Some(opening) => opening,
            none => none.insert(reopened(
                Arc::clone(&self.pool),
                self.keys.clone(),
                self.next,
                *self.lost.get_or_insert_with(|| self.pool.clock.now()),
            )?),
        };
        let opened = opening.await;
        self.opening = None;
        self.live = Some(opened?);
        Ok(())
    }

    /// Gives up the stream.
    fn lose(&mut self, why: &Error) {
        if let Some(live) = self.live.take() {
            self.pool.lost(live.node, live.serial, why);
            self.lost.get_or_insert_with(|| self.pool.clock.now());
        }
    }

    /// The changes in one message. Empty if the message only shows that the stream is alive.
    fn take(&mut self, response: &WatchResponse, url: &str) -> Result<Vec<Change>, Failure> {
        if response.compact_revision() > 0 {
            let error = forgotten(OPERATION)
                .with("from", self.next)
                .with("kept_from", response.compact_revision());
            return Err(Failure::Refused(error));
        }
        if response.canceled() {
            let code = if response.cancel_reason().contains("permission denied") {
                tonic::Code::PermissionDenied
            } else {
                tonic::Code::Unavailable
            };
            let status = tonic::Status::new(code, response.cancel_reason());
            return Err(judge(OPERATION, url, etcd_client::Error::GRpcStatus(status)));
        }
        if response.events().is_empty() {
            // The header of the first message carries the store's version; it does not say that all changes up to it
            // were delivered.
            if !response.created() {
                let told = response.header().map_or(0, etcd_client::ResponseHeader::revision);
                self.next = self.next.max(told.saturating_add(1));
                self.lost = None;
            }
            return Ok(Vec::new());
        }
        let events = response.events().iter().filter_map(etcd_client::Event::kv);
        let new = events.clone().filter(|kv| kv.mod_revision() >= self.next);
        let changes = new
            .map(|kv| self.names.change(kv, &self.since.epoch))
            .collect::<Result<Vec<_>>>()
            .map_err(Failure::Refused)?;
        let last = events.map(etcd_client::KeyValue::mod_revision).max().unwrap_or(0);
        self.next = self.next.max(last.saturating_add(1));
        self.lost = None;
        Ok(changes)
    }
}

/// Opens a stream from a revision on, at any node that accepts it.
async fn stream(pool: &Pool, keys: &Range<Vec<u8>>, next: i64, call: Call) -> Result<Live> {
    let options = WatchOptions::new()
        .with_range(keys.end.clone())
        .with_start_revision(next)
        .with_progress_notify();
    let request = |mut link: Link, _| {
        let (key, options) = (keys.start.clone(), options.clone());
        async move {
            Ok(Plain((
                link.node,
                link.serial,
                link.watch.watch(key, Some(options)).await?,
            )))
        }
    };
    let (Plain((node, serial, stream)), _) = pool.call(call, request).await?;
    Ok(Live {
        stream,
        node,
        serial,
        heard: pool.clock.now(),
        asked: None,
    })
}

/// Opens a stream after one was lost, and none has delivered anything since then.
fn reopened(
    pool: Arc<Pool>,
    keys: Range<Vec<u8>>,
    next: i64,
    lost: Timestamp,
) -> Result<BoxFuture<'static, Result<Live>>> {
    let patience = pool.config.watch_patience;
    let gone = pool.clock.now().since(lost);
    if gone >= patience {
        return Err(Error::unavailable(
            OPERATION,
            "the watch lost its node and no other node accepted it: read again and start a new watch",
        )
        .with("lost_for_ms", gone.as_millis()));
    }
    Ok(Box::pin(async move {
        tokio::time::sleep(PAUSE).await;
        // Counted from here: the caller may not have polled for long.
        let call = Call {
            operation: OPERATION,
            nature: Nature::Repeatable,
            deadline: Deadline::after(pool.clock.as_ref(), patience.saturating_sub(gone)),
            patience: pool.config.try_timeout,
        };
        stream(&pool, &keys, next, call).await
    }))
}

#[async_trait]
impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        loop {
            if !self.pool.history.is_since(&self.since) {
                self.live = None;
                self.opening = None;
                let message = "etcd was restored or replaced: read again and watch from there";
                return Err(Error::unavailable(OPERATION, message));
            }
            let Some(live) = &mut self.live else {
                self.reopen().await?;
                continue;
            };
            let (node, probe) = (live.node, self.pool.config.watch_probe);
            // The caller may not have polled for long. Messages that came meanwhile are available at once; silence
            // counts against the node only after progress was requested.
            let silent = self.pool.clock.now().since(live.asked.unwrap_or(live.heard));
            let message = tokio::select! {
                biased;
                // A cut since the last check is seen at once: the receiver was made before the stream.
                Ok(()) = self.cuts.changed() => continue,
                message = tokio::time::timeout(probe.saturating_sub(silent), live.stream.message()) => message,
            };
            let failure = match message {
                Ok(Ok(Some(response))) => {
                    live.heard = self.pool.clock.now();
                    live.asked = None;
                    let pool = Arc::clone(&self.pool);
                    match self.take(&response, pool.url(node)) {
                        Ok(changes) if changes.is_empty() => continue,
                        Ok(changes) => return Ok(changes),
                        Err(failure) => failure,
                    }
                }
                Ok(Ok(None)) => Failure::Unknown(Error::unavailable(OPERATION, "etcd ended the stream")),
                Ok(Err(error)) => judge(OPERATION, self.pool.url(node), error),
                Err(_) if live.asked.is_none() => {
                    live.asked = Some(self.pool.clock.now());
                    // If the request fails, the silence goes on, and the silence decides.
                    tokio::time::timeout(probe, live.stream.request_progress()).await.ok();
                    continue;
                }
                Err(_) => Failure::Unknown(Error::unavailable(
                    OPERATION,
                    "the node of a watch did not answer a progress request",
                )),
            };
            match failure {
                Failure::Refused(error) | Failure::Full(error) => {
                    self.live = None;
                    return Err(error);
                }
                Failure::NotDone(error) | Failure::NotConnected(error) | Failure::Unknown(error) => self.lose(&error),
            }
        }
    }
}

impl fmt::Debug for EtcdWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdWatch")
            .field("from", &String::from_utf8_lossy(&self.keys.start))
            .field("to", &String::from_utf8_lossy(&self.keys.end))
            .field("next", &self.next)
            .field("node", &self.live.as_ref().map(|live| self.pool.url(live.node)))
            .finish_non_exhaustive()
    }
}
