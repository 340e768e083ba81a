//! Detects whether this is still the etcd that this process knows.
//!
//! Every answer carries etcd's cluster id and revision. A linearizable answer (to a read, a transaction) has a revision
//! no smaller than that of any answer that arrived before its request was sent. If it has a smaller one, etcd was put
//! back to an earlier state or replaced. Another cluster id shows that too, and so do other bytes under the epoch key
//! (see [`crate::epoch`]), which transactions compare and which every session's keeper reads at each keep-alive.
//!
//! **A read is checked by its own answer; a transaction is checked before it is sent**, because its answer comes too
//! late. An etcd cannot be put back without ending its processes, and so every connection to it; and a connection is
//! never made a second time ([`crate::dial`]). So what a connection has shown once holds for as long as it lasts: each
//! one counts the largest revision that it has shown ([`Shown`]), and a transaction is sent only on a connection that
//! has shown the largest one that this process knows. A new connection is asked first, by a linearizable read.
//!
//! ```text
//!             revision went back · another cluster · another epoch
//!   trusted ──────────────────────────────────────────────────────▶ cut: every call is refused, sessions and watches end
//!      ▲                                                              │
//!      └── the next call reads the epoch key: a later epoch than ours ┘      (one call at a time asks; the others wait)
//! ```
//!
//! Refusals last until the guard has been run, even if an older state comes back: an epoch that is not later than ours
//! proves nothing. The first connection of a process has nothing to compare with.
//!
//! # What if
//! - *an answer comes late*, to a request begun before the cut: it belongs to no history that can be named, so it is an
//!   error; for a transaction, an ambiguous one.
//! - *etcd was put back and has overtaken the revision that was seen, before this process asked again*: the revision
//!   does not show it; the epoch does, once the guard was run. So the guard is run before anything is written.
//! - *the old etcd's last answer is read after the new one was asked*: the largest known revision is larger now than
//!   what the new connection has shown, so the new one is asked again before the next transaction.
//! - *a read alone leads to a removal*, of an object that no record names: the answer showed at least the revision of
//!   every answer before it, so nothing that this process has written or seen is missing from it.
//! - *a proxy that speaks gRPC itself is between us and etcd*: our connection may outlive etcd's process, and the first
//!   transaction finds out by its own answer. Proxies that forward bytes, as Kubernetes' services do, are no problem.

use std::sync::atomic::{AtomicI64, Ordering};

use etcd_client::{GetResponse, LeaseGrantResponse, LeaseRevokeResponse, ResponseHeader, TxnResponse};
use parking_lot::Mutex;
use tensorhold_core::{Error, ErrorKind};
use tensorhold_index::History as Told;

use crate::epoch::Epoch;

const WHAT_TO_DO: &str = "nothing is read or changed until its operator has run Tensorhold's restore guard; then this \
                          process goes on by itself, in new sessions";

/// An answer of etcd with its header.
pub(crate) trait Headed {
    /// Its header, if it has one.
    fn header(&self) -> Option<&ResponseHeader>;
    /// Whether the revision of such an answer is at least that of all answers before it.
    const LINEARIZABLE: bool;
}

impl Headed for GetResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header()
    }
    const LINEARIZABLE: bool = true;
}

impl Headed for TxnResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header()
    }
    const LINEARIZABLE: bool = true;
}

impl Headed for LeaseGrantResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header()
    }
    const LINEARIZABLE: bool = false;
}

impl Headed for LeaseRevokeResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header()
    }
    const LINEARIZABLE: bool = false;
}

/// An answer whose header is not known, or not needed.
pub(crate) struct Plain<T>(pub(crate) T);

impl<T> Headed for Plain<T> {
    fn header(&self) -> Option<&ResponseHeader> {
        None
    }
    const LINEARIZABLE: bool = false;
}

/// The largest revision that the linearizable answers on one connection have shown; less than any if it has to be asked.
#[derive(Debug)]
pub(crate) struct Shown(AtomicI64);

impl Shown {
    const NOTHING: i64 = -1;

    pub(crate) fn nothing() -> Self {
        Self(AtomicI64::new(Self::NOTHING))
    }

    /// Makes the next transaction ask first.
    pub(crate) fn reset(&self) {
        self.0.store(Self::NOTHING, Ordering::Release);
    }
}

/// What this process knows about etcd's history.
#[derive(Debug)]
pub(crate) struct History {
    state: Mutex<State>,
    /// Ensures that one call at a time asks whether the guard was run.
    pub(crate) asking: tokio::sync::Mutex<()>,
    /// The number of cuts so far; keepers and watches wait for the next one.
    cuts: tokio::sync::watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    cluster: Option<u64>,
    largest: i64,
    epoch: Epoch,
    cuts: u64,
    /// The reason why every call is refused, if it is.
    refuses: Option<String>,
}

/// The history that a call began in.
#[derive(Clone, Debug)]
pub(crate) struct Since {
    pub(crate) epoch: Epoch,
    largest: i64,
    cuts: u64,
}

impl Since {
    /// Whether a connection has shown as much as is known.
    pub(crate) fn is_shown_by(&self, shown: &Shown) -> bool {
        shown.0.load(Ordering::Acquire) >= self.largest
    }
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                cluster: None,
                largest: 0,
                epoch: Epoch::unknown(),
                cuts: 0,
                refuses: None,
            }),
            asking: tokio::sync::Mutex::default(),
            cuts: tokio::sync::watch::Sender::new(0),
        }
    }

    /// The history in which a call begins. An error if every call is refused.
    pub(crate) fn begin(&self, operation: &'static str) -> Result<Since, Error> {
        let state = self.state.lock();
        match &state.refuses {
            Some(why) => Err(fenced(operation, why)),
            None => Ok(state.since()),
        }
    }

    /// What is known by now of the history in which a call began. An error if there was a cut since.
    pub(crate) fn by_now(&self, operation: &'static str, since: &Since) -> Result<Since, Error> {
        let state = self.state.lock();
        state.check(operation, since)?;
        Ok(state.since())
    }

    /// Whether there was no cut since then.
    pub(crate) fn is_since(&self, since: &Since) -> bool {
        self.state.lock().cuts == since.cuts
    }

    /// Lets keepers and watches wait for the next cut.
    pub(crate) fn cuts(&self) -> tokio::sync::watch::Receiver<u64> {
        self.cuts.subscribe()
    }

    /// Records the header of an answer on a connection. An error if the answer cannot be trusted.
    pub(crate) fn saw<T: Headed>(
        &self,
        operation: &'static str,
        since: &Since,
        shown: &Shown,
        answer: &T,
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.check(operation, since)?;
        let Some(header) = answer.header() else { return Ok(()) };
        let (cluster, revision) = (header.cluster_id(), header.revision());
        let why = if state.cluster.is_some_and(|known| known != cluster) {
            Some(format!("another etcd cluster answers where ours did: {WHAT_TO_DO}"))
        } else if T::LINEARIZABLE && revision < since.largest {
            let seen = since.largest;
            Some(format!(
                "etcd went back from revision {seen} to {revision}: it was restored from a snapshot, or replaced; {WHAT_TO_DO}"
            ))
        } else {
            None
        };
        if let Some(why) = why {
            return Err(self.cut(operation, &mut state, why));
        }
        state.cluster = Some(cluster);
        if T::LINEARIZABLE {
            state.largest = state.largest.max(revision);
            shown.0.fetch_max(revision, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Compares the value under the epoch key with the epoch that the call began in. An error if they differ.
    pub(crate) fn saw_epoch(&self, operation: &'static str, since: &Since, value: Option<&[u8]>) -> Result<(), Error> {
        if since.epoch.is(value) {
            return Ok(());
        }
        let mut state = self.state.lock();
        let why = match value {
            Some(_) => {
                format!("etcd is in another epoch than this process knows: it was restored or replaced; {WHAT_TO_DO}")
            }
            None => {
                format!("etcd has lost the index's epoch: another one, or an empty one, is in its place; {WHAT_TO_DO}")
            }
        };
        if state.cuts != since.cuts {
            return Err(fenced(operation, &why));
        }
        Err(self.cut(operation, &mut state, why))
    }

    fn cut(&self, operation: &'static str, state: &mut State, why: String) -> Error {
        state.cuts += 1;
        state.refuses = Some(why.clone());
        tracing::error!(operation, epoch = state.epoch.name(), cuts = state.cuts, "{why}");
        self.cuts.send_replace(state.cuts);
        fenced(operation, &why)
    }

    /// The epoch that this process is in, or was in when it was cut off.
    pub(crate) fn epoch(&self) -> Epoch {
        self.state.lock().epoch.clone()
    }

    /// Enters this epoch, as an answer showed it.
    pub(crate) fn enter(&self, epoch: Epoch, answer: &GetResponse) {
        let mut state = self.state.lock();
        let was_cut = state.refuses.take().is_some();
        if was_cut {
            tracing::warn!(
                epoch = epoch.name(),
                "etcd's operator has declared another epoch: going on in it"
            );
            state.largest = 0;
            state.cluster = None;
        }
        if let Some(header) = answer.header() {
            state.cluster = Some(header.cluster_id());
            state.largest = state.largest.max(header.revision());
        }
        state.epoch = epoch;
    }

    /// A summary for people.
    pub(crate) fn told(&self) -> Told {
        let state = self.state.lock();
        Told {
            epoch: state.epoch.name(),
            cuts: state.cuts,
            refuses: state.refuses.clone(),
        }
    }
}

impl State {
    /// An error if there was a cut since then.
    fn check(&self, operation: &'static str, since: &Since) -> Result<(), Error> {
        if self.cuts == since.cuts {
            return Ok(());
        }
        let why = "etcd was restored or replaced while this call was in flight";
        Err(fenced(operation, self.refuses.as_deref().unwrap_or(why)))
    }

    fn since(&self) -> Since {
        Since {
            epoch: self.epoch.clone(),
            largest: self.largest,
            cuts: self.cuts,
        }
    }
}

fn fenced(operation: &'static str, why: &str) -> Error {
    Error::new(ErrorKind::Fenced, operation, why)
}
