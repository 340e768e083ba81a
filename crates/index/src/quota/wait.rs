//! A reservation that waits, as its caller sees it.
//!
//! ```text
//!            served                       told
//! waiting ───────────▶ being served ──┬──────────▶ reserved, or refused: another producer writes the sample
//!    │                                └── not told: ambiguous ──▶ reads: its own reservation is there ──▶ reserved
//!    └── deadline, its caller left, its session ended                └── it is not ──▶ error, ambiguous
//! ```

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Digest, Error, ErrorKind, Generation, Result, Retry, SampleId};
use tensorhold_custody::{Reserved, Tick, Version};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::request::WaitRequest;
use super::{OPERATION, Quota};
use crate::record::codec::{decode, encode};
use crate::record::grants::{GrantLine, OpenGrantList};
use crate::record::refusal::{being_written_or_owned, generation_of};
use crate::record::types::Reserve;
use crate::store::Read;
use crate::txn::record_cache::CachedRecord;
use crate::txn::session::Session;

/// How long a caller whose time is up waits for a transaction that serves it right now.
pub(super) const A_LITTLE_MORE: Duration = Duration::from_secs(1);

/// A reservation that waits, as its process sees it. Dropped without an answer, its outcome is ambiguous.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) session: Session,
    pub(super) want: WaitRequest,
    /// Cancelled when its caller leaves.
    pub(super) leaving: CancellationToken,
    /// How often the task had found too little before it came.
    pub(super) too_little: u64,
    answer: oneshot::Sender<Answer>,
}

/// How a wait ended.
#[derive(Debug)]
pub(super) enum Answer {
    /// All is reserved, by the write of this version.
    Reserved {
        version: Version,
        until: Tick,
        /// The key of the grant list that says so.
        grant: String,
    },
    /// Nothing is reserved: other producers are writing these.
    Taken(Vec<SampleId>),
    /// Nothing is reserved: it has left.
    Left {
        /// Whether the quota was why it waited, as far as is known.
        too_little: bool,
    },
    Failed(Error),
}

impl Waiting {
    pub(super) fn tell(self, answer: Answer) {
        if self.answer.send(answer).is_err() {
            tracing::debug!("a reservation's caller left before it was told; what was reserved expires");
        }
    }
}

/// A waiter's place in the broker, until it is dropped.
struct Entered<'a> {
    quota: &'a Quota,
    number: u64,
    leaving: CancellationToken,
    /// How often the task had found too little before it came.
    too_little: u64,
}

impl Entered<'_> {
    /// False if it is being served, or is in the shared queue: then it is answered soon.
    fn leave(&self) -> bool {
        // First, so that a waiter that is put back after this is told instead.
        self.leaving.cancel();
        self.quota.state.lock().broker.leave(self.number).is_some()
    }

    /// Whether there was too little while it waited.
    fn found_too_little(&self) -> bool {
        self.quota.state.lock().found_too_little(self.too_little)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Quota {
    /// Reserves items that belong together, and waits for the quota if it must. Items that other producers write get
    /// that as their result; then the others have none yet.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Result<Vec<Option<Result<Generation>>>> {
        let want = WaitRequest::of(items, self.core.wall());
        let reserved = |generation| items.iter().map(|_| Some(Ok(generation))).collect();
        // Whether a transaction that may have served it, or may yet, has not been heard of.
        let mut unclear = false;
        loop {
            let answer = self.wait(session, &want, cancelled, deadline).await;
            unclear |= answer.is_none();
            if unclear && !matches!(answer, Some(Answer::Reserved { .. })) {
                let own = self.own_reservation(session, &want).await.map_err(ambiguous)?;
                if let Some(generation) = own {
                    return Ok(reserved(generation));
                }
            }
            let error = match answer {
                Some(Answer::Reserved { version, until, grant }) => {
                    return self
                        .was_reserved(session, &want, version, until, Some(grant))
                        .map(reserved);
                }
                Some(Answer::Taken(samples)) => {
                    let refused = |item: &Reserve| {
                        samples
                            .contains(&item.sample)
                            .then(|| Err(being_written_or_owned(item)))
                    };
                    return Ok(items.iter().map(refused).collect());
                }
                Some(Answer::Failed(error)) => error,
                Some(Answer::Left { too_little }) => self.why_not(session, &want, too_little),
                None if cancelled.is_cancelled() || deadline.passed(self.core.clock()) => Error::unavailable(
                    OPERATION,
                    "the index did not say in time whether the sample was reserved; it may be, now or later",
                ),
                None => continue,
            };
            return Err(if unclear { ambiguous(error) } else { error });
        }
    }

    /// Waits until it is served. None if that is unclear.
    async fn wait(
        self: &Arc<Self>,
        session: &Session,
        want: &WaitRequest,
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Option<Answer> {
        let (sender, mut answer) = oneshot::channel();
        let entered = self.enter(session, want.clone(), sender);
        tokio::select! {
            told = &mut answer => return told.ok(),
            () = tokio::time::sleep(deadline.remaining(self.core.clock())) => {}
            () = cancelled.cancelled() => {}
            () = session.ended() => {}
        }
        let left = || Answer::Left {
            too_little: entered.found_too_little(),
        };
        if entered.leave() {
            return Some(left());
        }
        // It is being served right now, or leaves the shared queue.
        match tokio::time::timeout(A_LITTLE_MORE, answer).await {
            Ok(told) => told.ok(),
            Err(_) => entered.leave().then(left),
        }
    }

    fn enter(self: &Arc<Self>, session: &Session, want: WaitRequest, answer: oneshot::Sender<Answer>) -> Entered<'_> {
        let leaving = CancellationToken::new();
        let mut state = self.state.lock();
        let waiting = Waiting {
            session: session.handle(),
            leaving: leaving.clone(),
            too_little: state.too_little,
            answer,
            want,
        };
        let number = state.broker.arrive(waiting.want.bytes(), self.version(), waiting);
        self.run_task(&mut state);
        Entered {
            quota: self,
            number,
            leaving,
            too_little: state.too_little,
        }
    }

    /// Why a reservation was not made within its time.
    fn why_not(&self, session: &Session, want: &WaitRequest, too_little: bool) -> Error {
        if !session.is_alive() {
            return session.fenced(OPERATION);
        }
        // Of another waiter's trouble only that the index does not answer concerns this one, for which nothing was sent.
        let failed = self.state.lock().failed.clone();
        if let Some(error) = failed.filter(|error| error.kind() == ErrorKind::Unavailable) {
            return error.with_retry(Retry::Safe);
        }
        if !too_little {
            let message = "the index did not say in time whether there is quota; nothing was reserved, try again";
            return Error::unavailable(OPERATION, message);
        }
        let message = "the store's budget is spent, and none came back in time; free samples, or raise the budget";
        Error::new(ErrorKind::Capacity, OPERATION, message).with("wanted", want.bytes())
    }

    /// The generation of these very reservations, if they are there.
    async fn own_reservation(&self, session: &Session, want: &WaitRequest) -> Result<Option<Generation>> {
        let keys = want.samples.iter().map(|item| self.core.layout().pending(&item.sample));
        let reads: Vec<Read> = keys.map(Read::Key).collect();
        let snapshot = self.core.txn_store().read(&reads, A_LITTLE_MORE).await?;
        let mut found: Option<(Version, Tick)> = None;
        for (item, entries) in want.samples.iter().zip(&snapshot.entries) {
            let Some(entry) = entries.first() else { return Ok(None) };
            let reserved = decode::<Reserved>(entry)?;
            let until = reserved.until;
            if !item.is_served_by(&reserved, session.id()) || found.is_some_and(|found| found != (entry.version, until))
            {
                return Ok(None);
            }
            found = Some((entry.version, until));
        }
        let remember = |(version, until)| self.was_reserved(session, want, version, until, None);
        found.map(remember).transpose()
    }

    /// Another transaction than its own has made these reservations for a session: it remembers them as if it had.
    fn was_reserved(
        &self,
        session: &Session,
        want: &WaitRequest,
        version: Version,
        until: Tick,
        grant: Option<String>,
    ) -> Result<Generation> {
        let generation = generation_of(version)?;
        let grant = grant.map(|key| OpenGrantList::new(key, want.samples.len()));
        for (line, item) in want.samples.iter().enumerate() {
            let record = CachedRecord {
                value: encode(&item.reserved(session.id(), until))?,
                version,
                grant: grant.clone().map(|grant| GrantLine { grant, line }),
            };
            let key = self.core.layout().pending(&item.sample);
            session.remember(Digest::of(key.as_bytes()), record);
        }
        Ok(generation)
    }
}

fn ambiguous(error: Error) -> Error {
    error.with_retry(Retry::Ambiguous)
}
