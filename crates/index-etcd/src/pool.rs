//! The nodes, and which one is spoken to.
//!
//! All calls go to the current node. Who fails there moves everybody on to the next (once: a second one who fails at the
//! same node finds it moved already) and tries again, within its own deadline:
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
//! **A transaction is not sent into an election.** A follower that does not know yet that its leader is dead passes a
//! proposal on to nobody, and the caller waits for an answer that never comes: ambiguous, for nothing. So after trouble
//! (and once per connection) a node must first answer a linearizable read, which it can only with a leader that lives,
//! and which may be asked again.
//!
//! **Nor to an etcd that is not the one we know**: that read, like every answer, shows whether it is ([`crate::history`]).
//!
//! A connection that is in doubt is forgotten, so that whoever comes next makes a new one; calls under way on it are not
//! disturbed. One caller at a time connects to a node; the others wait for it, each within its own time.
//!
//! **Who was let in once is patient.** Credentials are read for each connection. One that etcd does not accept is final when
//! the store is opened; later, it may be half of a rotation, and is tried again until the caller's deadline.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::GetOptions;
use holdfast_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, Rng, SystemRng};
use parking_lot::Mutex;

use crate::config::EtcdConfig;
use crate::dial::{self, Link};
use crate::epoch::Epoch;
use crate::history::{Headed, History, Since};
use crate::outcome::{Failure, judge};

/// The first pause after all nodes failed; it doubles, up to the longest.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Whether a request may be sent again if nobody knows what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Doing it twice is as good as once.
    Repeatable,
    /// It must not be done twice: an unknown outcome is the caller's to find out.
    Once,
}

/// What a call is, to the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) operation: &'static str,
    pub(crate) nature: Nature,
    pub(crate) deadline: Deadline,
    /// How long one node may take to answer, at first.
    pub(crate) patience: Duration,
}

pub(crate) struct Pool {
    pub(crate) config: Arc<EtcdConfig>,
    pub(crate) clock: Arc<dyn Clock>,
    nodes: Vec<Node>,
    current: AtomicUsize,
    /// Whether some node has let us in. From then on, that one does not is perhaps a rotation that is under way.
    let_in: AtomicBool,
    /// Where the epoch stands: a key that we may read.
    epoch_key: Vec<u8>,
    pub(crate) history: History,
}

struct Node {
    url: String,
    link: Mutex<Option<Link>>,
    dialing: tokio::sync::Mutex<()>,
}

impl Pool {
    /// Checks the settings. Connects to nobody yet.
    pub(crate) fn new(config: EtcdConfig, clock: Arc<dyn Clock>, epoch_key: Vec<u8>) -> Result<Self> {
        config.check()?;
        let node = |url: &String| {
            // Only to say at once what is wrong with them; each connection reads them again.
            dial::credentials(url, &config)?;
            Ok(Node {
                url: url.clone(),
                link: Mutex::new(None),
                dialing: tokio::sync::Mutex::new(()),
            })
        };
        let nodes: Vec<Node> = config.endpoints.iter().map(node).collect::<Result<_>>()?;
        let count = u64::try_from(nodes.len()).unwrap_or(1);
        // Which node a process begins with decides nothing but its load, so nobody needs to choose it.
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

    /// Makes a request of the current node, and of the next ones if that fails, as long as its nature allows. Returns the
    /// history that the answer belongs to, too.
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
                Ok(answer) => {
                    let trusted = self.history.saw(call.operation, &since, &answer);
                    return match trusted {
                        Ok(()) => Ok((answer, since)),
                        // It was applied, to whatever is there now.
                        Err(error) if call.nature == Nature::Once => Err(error.with_retry(Retry::Ambiguous)),
                        Err(error) => Err(error),
                    };
                }
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
                Failure::Unknown(error) | Failure::NotDone(error) => {
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

    /// What is under the epoch key, if that is still our epoch.
    pub(crate) async fn look_at_epoch(&self, call: Call) -> Result<()> {
        let key = || self.epoch_key.clone();
        let (answer, since) = self
            .call(call, |mut link, _| async move { link.kv.get(key(), None).await })
            .await?;
        let value = answer.kvs().first().map(etcd_client::KeyValue::value);
        self.history.saw_epoch(call.operation, &since, value)
    }

    /// Everything is refused: asks etcd whether its operator has declared another epoch, and goes on in it then.
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
        let (serial, proven) = (link.serial, Arc::clone(&link.proven));
        let outcome = async {
            if call.nature == Nature::Once && !proven.load(Ordering::Acquire) {
                let mut kv = link.kv.clone();
                let options = GetOptions::new().with_count_only();
                let asked = kv.get(self.epoch_key.clone(), Some(options));
                let answer = self.wait_for(at, call, self.config.try_timeout, asked).await;
                let answer = answer.map_err(Failure::before_sending)?;
                let known = self.history.saw(call.operation, since, &answer);
                known.map_err(Failure::Refused)?;
                proven.store(true, Ordering::Release);
            }
            self.wait_for(at, call, patience, request(link, since.clone())).await
        };
        outcome.await.inspect_err(|failure| {
            if failure.spoils_connection() {
                self.forget(at, serial);
            }
        })
    }

    /// A node's answer, if it comes in time.
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
            Ok(Err(Failure::NotDone(error)))
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

    /// Gives a connection up, unless it has been already.
    fn forget(&self, at: usize, serial: u64) {
        let mut link = self.nodes[at].link.lock();
        if link.as_ref().is_some_and(|link| link.serial == serial) {
            *link = None;
        }
    }

    /// Moves on from a node, unless somebody has already.
    fn leave(&self, at: usize, why: &Error) {
        let next = (at + 1) % self.nodes.len();
        let moved = self
            .current
            .compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
        if moved.is_ok() {
            if let Some(link) = &*self.nodes[next].link.lock() {
                link.proven.store(false, Ordering::Release);
            }
            tracing::debug!(from = %self.nodes[at].url, to = %self.nodes[next].url, %why, "turning to another etcd node");
        }
    }

    /// Gives up what a long-lived stream was on: its connection and, for everybody, the node.
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
