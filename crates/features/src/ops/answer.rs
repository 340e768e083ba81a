//! Answering for leases, each in the session that it was granted to.
//!
//! An answer that retires a sample without readers starts its removal here. A fenced answer means that the sample was
//! retired while it was held: the lease is released, so that the removal does not wait for a reader that cannot answer.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{BatchResults, Deadline, Error, ErrorKind, Result};
use tensorhold_index::{AckOutcome, LeaseGrant, Session};

use crate::reclaim::queue::by_session;
use crate::store::lease::Lease;
use crate::store::{FeatureStore, Inner};

/// An answer to leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Ack,
    Nack,
    UseUp,
}

impl Inner {
    async fn answer(&self, leases: &[Lease], answer: Answer, deadline: Deadline) -> Vec<Result<AckOutcome>> {
        let started = self.runtime.step_begins();
        let results = self
            .in_their_sessions(leases, |session, held| async move {
                let left = self.runtime.left(deadline);
                match answer {
                    Answer::Ack => self.runtime.index.ack(&session, &held, left).await,
                    Answer::Nack => self.runtime.index.nack(&session, &held, left).await,
                    Answer::UseUp => self.runtime.index.use_up(&session, &held, left).await,
                }
            })
            .await;
        let (name, count) = match answer {
            Answer::Ack => ("ack", Some(&self.runtime.count.acks)),
            Answer::Nack => ("nack", Some(&self.runtime.count.nacks)),
            Answer::UseUp => ("use_up", None),
        };
        for (lease, result) in leases.iter().zip(&results) {
            lease.step_ended(&self.runtime, name, started, result.as_ref().err());
            match result {
                Ok(answered) => {
                    if let Some(count) = count {
                        count.one();
                    }
                    lease.set_answered();
                    self.reclaim
                        .after_answer(&lease.reference(), lease.description(), *answered);
                }
                // The sample may have been retired while it was held: it must not wait for a reader that cannot answer.
                Err(error) if error.kind() == ErrorKind::Fenced && !lease.is_answered() => {
                    lease.set_answered();
                    if lease.session().is_alive() {
                        self.reclaim.queue.release(Arc::clone(lease.session()), lease.held());
                    }
                }
                Err(_) => {}
            }
        }
        results
    }

    /// Does something with leases, each in the session that it was granted to.
    async fn in_their_sessions<T, F>(
        &self,
        leases: &[Lease],
        act: impl Fn(Arc<Session>, Vec<LeaseGrant>) -> F,
    ) -> Vec<Result<T>>
    where
        F: Future<Output = Vec<Result<T>>>,
    {
        let mut results = BatchResults::new(leases.len());
        let with_session = leases
            .iter()
            .enumerate()
            .map(|(at, lease)| (Arc::clone(lease.session()), at));
        for (session, places) in by_session(with_session).into_values() {
            let held = places.iter().map(|at| leases[*at].held()).collect();
            for (at, result) in places.into_iter().zip(act(session, held).await) {
                results.set(at, result);
            }
        }
        let unanswered = || Err(Error::internal("features.answer", "the index returned too few answers"));
        results.finish(unanswered)
    }

    pub(crate) async fn renew(&self, leases: &[Lease], deadline: Deadline) -> Vec<Result<()>> {
        let ticks = self.runtime.config.lease_ticks;
        let results = self
            .in_their_sessions(leases, |session, held| async move {
                let left = self.runtime.left(deadline);
                self.runtime.index.renew(&session, &held, ticks, left).await
            })
            .await;
        let keep = |(lease, result): (&Lease, Result<LeaseGrant>)| {
            lease.set_held(result?);
            Ok(())
        };
        leases.iter().zip(results).map(keep).collect()
    }

    async fn release(&self, leases: &[Lease], deadline: Deadline) -> Vec<Result<()>> {
        let results = self
            .in_their_sessions(leases, |session, held| async move {
                self.runtime
                    .index
                    .release(&session, &held, self.runtime.left(deadline))
                    .await
            })
            .await;
        for (lease, result) in leases.iter().zip(&results) {
            match result {
                Ok(()) => {
                    lease.set_answered();
                    // This may have been the last reader of a retired sample, or the last attempt of a group.
                    self.reclaim.queue.collect_soon();
                }
                Err(error) if error.kind() == ErrorKind::Fenced => lease.set_answered(),
                Err(_) => {}
            }
        }
        results
    }
}

impl FeatureStore {
    /// Prolongs leases to their full time from now. A get does so by itself while its bytes move.
    pub async fn renew(&self, leases: &[Lease], within: Duration) -> Vec<Result<()>> {
        let leases = leases.to_vec();
        self.run_batch("features.renew", leases.len(), |inner| async move {
            inner.renew(&leases, inner.deadline(within)).await
        })
        .await
    }

    /// Acknowledges that samples were used. Final. The last group's ack retires a sample that is not retained, and its
    /// bytes are freed at once in the background; [`FeatureStore::drain`] waits for that.
    pub async fn ack(&self, leases: &[Lease], within: Duration) -> Vec<Result<AckOutcome>> {
        let leases = leases.to_vec();
        self.run_batch("features.ack", leases.len(), |inner| async move {
            inner.answer(&leases, Answer::Ack, inner.deadline(within)).await
        })
        .await
    }

    /// Hands samples back unused: another consumer of the group takes them, or they become dead letters after the last
    /// attempt.
    pub async fn nack(&self, leases: &[Lease], within: Duration) -> Vec<Result<AckOutcome>> {
        let leases = leases.to_vec();
        self.run_batch("features.nack", leases.len(), |inner| async move {
            inner.answer(&leases, Answer::Nack, inner.deadline(within)).await
        })
        .await
    }

    /// Releases leases for reading, on samples that their readers have used up. The last one retires its sample, unless that
    /// was put for groups or is retained, and its bytes are freed as after the last ack.
    pub async fn use_up(&self, leases: &[Lease], within: Duration) -> Vec<Result<AckOutcome>> {
        let leases = leases.to_vec();
        self.run_batch("features.use_up", leases.len(), |inner| async move {
            inner.answer(&leases, Answer::UseUp, inner.deadline(within)).await
        })
        .await
    }

    /// Releases leases of either kind, also on samples that were retired meanwhile. For a group's lease it is a nack.
    pub async fn release(&self, leases: &[Lease], within: Duration) -> Vec<Result<()>> {
        let leases = leases.to_vec();
        self.run_batch("features.release", leases.len(), |inner| async move {
            inner.release(&leases, inner.deadline(within)).await
        })
        .await
    }
}
