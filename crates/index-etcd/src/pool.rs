//! The nodes of etcd, and which of them is used.
//!
//! All calls go to the current node. A call that fails there moves the pool on to the next node (once: a second call
//! that fails at the same node finds the pool moved already) and retries, within its own deadline:
//!
//! ```text
//!   try ──ok──▶ done
//!    ▲ │
//!    │ ├─ refused ───────────────────▶ error
//!    │ ├─ full ──────────────────────▶ error, Ambiguous if it must be once
//!    │ ├─ unknown, must be once ─────▶ error, Ambiguous
//!    │ └─ not done / unknown ──▶ next node ──(a whole round failed: pause, more patience)──┐
//!    └────────────────────────────────────────────────────────────────────── time left? ◀──┘
//! ```
//!
//! **A transaction is not sent into an election.** A follower that does not know yet that its leader is dead forwards a
//! proposal to a dead node, and the caller waits for an answer that never comes: an ambiguous outcome for nothing. So
//! after a failure (and once per connection) a node must first answer a linearizable read. It can do so only with a
//! live leader, and the read may be retried.
//!
//! **Nor is it sent to another etcd than the one we know**: that read shows which one it is, and for as long as its
//! connection lasts ([`crate::history`]).
//!
//! A connection that is in doubt is forgotten, so that the next call makes a new one; calls in flight on it are not
//! disturbed. One that has broken fails every call from then on as "never connected" ([`crate::dial`]): the first such
//! call forgets it. One caller at a time connects to a node; the others wait for it, each within its own time.
//!
//! **A process that was admitted once is patient.** Credentials are read for each connection. Credentials that etcd
//! does not accept are a final error when the store is opened; later, they may be half of a rotation, and are retried
//! until the caller's deadline.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::GetOptions;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, Rng, SystemRng};

use crate::config::EtcdConfig;
use crate::dial::{self, Link};
use crate::epoch::Epoch;
use crate::history::{Headed, History, Since};
use crate::outcome::{Failure, judge};

/// The first pause after all nodes failed. It doubles with each failed round, up to the longest.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Whether a request may be sent again if its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Idempotent: it may be applied twice.
    Repeatable,
    /// It must not be applied twice: an unknown outcome is left to the caller to resolve.
    Once,
}

/// A call, as the pool sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) nature: Nature,
    pub(crate) deadline: Deadline,
    /// How long one node may take to answer the first try.
    pub(crate) patience: Duration,
}

pub(crate) struct Pool {
    pub(crate) config: Arc<EtcdConfig>,
    pub(crate) clock: Arc<dyn Clock>,
    nodes: Vec<Node>,
    current: AtomicUsize,
    /// Whether some node has admitted us. From then on, a refusal may be a rotation in progress.
    let_in: AtomicBool,
    /// The key of the epoch, which this process is allowed to read.
    epoch_key: Vec<u8>,
    pub(crate) history: History,
}

struct Node {
    url: String,
    link: Mutex<Option<Link>>,
    dialing: tokio::sync::Mutex<()>,
}

impl Pool {
    /// Checks the settings. Does not connect yet.
    pub(crate) fn new(config: EtcdConfig, clock: Arc<dyn Clock>, epoch_key: Vec<u8>) -> Result<Self> {
        config.check()?;
        let node = |url: &String| {
            // Read only to report at once what is wrong with them; each connection reads them again.
            dial::credentials(url, &config)?;
            Ok(Node {
                url: url.clone(),
                link: Mutex::new(None),
                dialing: tokio::sync::Mutex::new(()),
            })
        };
        let nodes: Vec<Node> = config.endpoints.iter().map(node).collect::<Result<_>>()?;
        let count = u64::try_from(nodes.len()).unwrap_or(1);
        // The first node of a process affects only the load, so a random one will do.
        let first = if config.spread { SystemRng.below(count) } else { 0 };
        let current = AtomicUsize::new(usize::try_from(first).unwrap_or(0));
        Ok(Self {
            config: Arc::new(config),
            clock,
            nodes,
            current,
            let_in: AtomicBool::new(false),
            epoch_key,
            history: History::new(),
        })
    }

    /// Sends a request to the current node, and to the next ones if that fails, as far as the nature of the call
    /// allows. Also returns the history that the answer belongs to.
    pub(crate) async fn call<T, F, A>(&self, call: Call, request: F) -> Result<(T, Since)>
    where
        T: Headed,
        F: Fn(Link, Since) -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let since = match self.history.begin(call.operation) {
            Ok(since) => since,
            Err(refused) => self.ask_again(&call, refused).await?,
        };
        let mut failed: usize = 0;
        let mut last = None;
        while !call.deadline.passed(self.clock.as_ref()) {
            let round = u32::try_from(failed / self.nodes.len()).unwrap_or(u32::MAX).min(6);
            let node = self.current.load(Ordering::Acquire);
            let failure = match self
                .attempt(node, &call, call.patience * 2_u32.pow(round), &since, &request)
                .await
            {
                Ok(answer) => return Ok((answer, since)),
                Err(failure) => failure,
            };
            match failure {
                Failure::Refused(error) => return Err(error),
                Failure::Full(error) if call.nature == Nature::Once => return Err(error.with_retry(Retry::Ambiguous)),
                Failure::Full(error) => return Err(error),
                Failure::Unknown(error) if call.nature == Nature::Once => {
                    self.leave(node, &error);
                    return Err(error.with_retry(Retry::Ambiguous));
                }
                Failure::Unknown(error) | Failure::NotDone(error) | Failure::NotConnected(error) => {
                    self.leave(node, &error);
                    last = Some(error);
                }
            }
            failed += 1;
            if failed.is_multiple_of(self.nodes.len()) {
                let pause = (PAUSE * 2_u32.pow(round)).min(LONGEST_PAUSE);
                tokio::time::sleep(pause.min(call.deadline.remaining(self.clock.as_ref()))).await;
            }
        }
        let error = Error::unavailable(call.operation, "etcd did not answer before the deadline").with("tries", failed);
        Err(match last {
            Some(last) if last.kind() == ErrorKind::Denied => last.with("tries", failed),
            Some(last) => error.caused_by(last),
            None => error,
        })
    }

    /// Reads the epoch key. An error if it no longer holds our epoch.
    pub(crate) async fn look_at_epoch(&self, call: Call) -> Result<()> {
        let key = || self.epoch_key.clone();
        let (answer, since) = self
            .call(call, |mut link, _| async move { link.kv.get(key(), None).await })
            .await?;
        let value = answer.kvs().first().map(etcd_client::KeyValue::value);
        self.history.saw_epoch(call.operation, &since, value)
    }

    /// Called when every call is refused: asks etcd whether its operator has declared a new epoch, and enters it if so.
    async fn ask_again(&self, call: &Call, refused: Error) -> Result<Since> {
        let left = call.deadline.remaining(self.clock.as_ref());
        let Ok(_one_asks) = tokio::time::timeout(left, self.history.asking.lock()).await else {
            return Err(refused);
        };
        if let Ok(since) = self.history.begin(call.operation) {
            return Ok(since);
        }
        let at = self.current.load(Ordering::Acquire);
        let asked = async {
            let link = tokio::time::timeout(left, self.link(at)).await;
            let mut link = link.unwrap_or_else(|_| {
                let error = silent(call.operation, &self.nodes[at], left);
                Err(Failure::NotDone(error))
            })?;
            let serial = link.serial;
            let answer = link.kv.get(self.epoch_key.clone(), None);
            let answer = self.wait_for(at, call, self.config.try_timeout, answer).await;
            answer.inspect_err(|_| self.forget(at, serial))
        };
        let answer = match asked.await {
            Ok(answer) => answer,
            Err(failure) => {
                let why = failure.into_error();
                self.leave(at, &why);
                return Err(refused.caused_by(why));
            }
        };
        let declared = answer.kvs().first().map(Epoch::read).transpose()?;
        match declared {
            Some(epoch) if epoch.is_after(&self.history.epoch()) => {
                self.history.enter(epoch, &answer);
                self.history.begin(call.operation)
            }
            _ => Err(refused),
        }
    }

    /// One try at one node.
    async fn attempt<T, F, A>(
        &self,
        at: usize,
        call: &Call,
        patience: Duration,
        since: &Since,
        request: &F,
    ) -> Result<T, Failure>
    where
        T: Headed,
        F: Fn(Link, Since) -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let node = &self.nodes[at];
        let left = call.deadline.remaining(self.clock.as_ref());
        let link = tokio::time::timeout(left, self.link(at)).await.unwrap_or_else(|_| {
            Err(Failure::NotDone(
                silent(call.operation, node, left).with("phase", "connect"),
            ))
        })?;
        let (serial, shown) = (link.serial, Arc::clone(&link.shown));
        let outcome = async {
            let known = loop {
                let known = self.history.by_now(call.operation, since).map_err(Failure::Refused)?;
                if call.nature == Nature::Repeatable || known.is_shown_by(&shown) {
                    break known;
                }
                let mut kv = link.kv.clone();
                let options = GetOptions::new().with_count_only();
                let asked = kv.get(self.epoch_key.clone(), Some(options));
                let answer = self.wait_for(at, call, self.config.try_timeout, asked).await;
                let answer = answer.map_err(Failure::before_sending)?;
                let trusted = self.history.saw(call.operation, &known, &shown, &answer);
                trusted.map_err(Failure::Refused)?;
            };
            let answer = self.wait_for(at, call, patience, request(link, known.clone())).await?;
            match self.history.saw(call.operation, &known, &shown, &answer) {
                Ok(()) => Ok(answer),
                // It was applied, to whichever etcd is there now.
                Err(error) if call.nature == Nature::Once => Err(Failure::Refused(error.with_retry(Retry::Ambiguous))),
                Err(error) => Err(Failure::Refused(error)),
            }
        };
        outcome.await.inspect_err(|failure| {
            if failure.spoils_connection() {
                self.forget(at, serial);
            }
        })
    }

    /// Waits for a node's answer, for a limited time.
    async fn wait_for<T>(
        &self,
        at: usize,
        call: &Call,
        patience: Duration,
        answer: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Failure> {
        let node = &self.nodes[at];
        let patience = patience.min(call.deadline.remaining(self.clock.as_ref()));
        if patience.is_zero() {
            return Err(Failure::NotDone(silent(call.operation, node, patience)));
        }
        match tokio::time::timeout(patience, answer).await {
            Ok(outcome) => outcome.map_err(|error| judge(call.operation, &node.url, error)),
            Err(_) => Err(Failure::Unknown(silent(call.operation, node, patience))),
        }
    }

    /// The connection to a node; makes one if there is none.
    async fn link(&self, at: usize) -> Result<Link, Failure> {
        let node = &self.nodes[at];
        let there = || node.link.lock().clone();
        if let Some(link) = there() {
            return Ok(link);
        }
        let _one_at_a_time = node.dialing.lock().await;
        if let Some(link) = there() {
            return Ok(link);
        }
        let within = self.config.connect_timeout + self.config.try_timeout;
        let link = tokio::time::timeout(within, dial::dial(at, &node.url, &self.config)).await;
        let link = match link {
            Ok(Ok(link)) => link,
            Ok(Err(Failure::NotDone(error) | Failure::NotConnected(error)))
                if error.kind() == ErrorKind::Denied && !self.let_in.load(Ordering::Acquire) =>
            {
                return Err(Failure::Refused(error));
            }
            Ok(Err(failure)) => return Err(failure),
            Err(_) => return Err(Failure::NotDone(silent("etcd.connect", node, within))),
        };
        self.let_in.store(true, Ordering::Release);
        *node.link.lock() = Some(link.clone());
        Ok(link)
    }

    /// Drops a connection, unless it was dropped already.
    fn forget(&self, at: usize, serial: u64) {
        let mut link = self.nodes[at].link.lock();
        if link.as_ref().is_some_and(|link| link.serial == serial) {
            *link = None;
        }
    }

    /// Moves on from a node, unless another call already has.
    fn leave(&self, at: usize, why: &Error) {
        let next = (at + 1) % self.nodes.len();
        let moved = self
            .current
            .compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
        if moved.is_ok() {
            if let Some(link) = &*self.nodes[next].link.lock() {
                link.shown.reset();
            }
            tracing::debug!(from = %self.nodes[at].url, to = %self.nodes[next].url, %why, "turning to another etcd node");
        }
    }

    /// Drops the connection of a long-lived stream that was lost, and moves all calls on from its node.
    pub(crate) fn lost(&self, node: usize, serial: u64, why: &Error) {
        self.forget(node, serial);
        self.leave(node, why);
    }

    pub(crate) fn url(&self, node: usize) -> &str {
        &self.nodes[node].url
    }
}

fn silent(operation: &'static str, node: &Node, waited: Duration) -> Error {
    Error::unavailable(operation, "an etcd node did not answer in time")
        .with("endpoint", &node.url)
        .with("waited_ms", waited.as_millis())
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self
            .nodes
            .get(self.current.load(Ordering::Relaxed))
            .map(|node| &node.url);
        f.debug_struct("Pool")
            .field("config", &self.config)
            .field("current", &current)
            .finish_non_exhaustive()
    }
}
