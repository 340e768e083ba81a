//! Committing, and resolving ambiguous outcomes.
//!
//! ```text
//!            yes ─────────────────────────────────────────────────▶ Yes
//! commit ──┬ no, for good ────────────────────────────────────────▶ No
//!          ├ the index did not take it: again, a few times
//!          └ unclear ─ give the reservation up ─┬ done ───────────▶ GivenUp: it was not and never will be made
//!                                               ├ it is gone: look ─ it is live ─▶ Yes
//!                                               └ no answer, or neither ─────────▶ Unknown
//! ```
//! All ambiguous commits of a batch are settled by the same calls and within one `call_within`: an index that is silent
//! delays a batch no longer than a single sample.
//!
//! Nothing of a sample is removed while its commit is `Unknown`: it may be live. If it is not, its reservation expires,
//! and a sweep clears up.

use std::time::Duration;

use tensorhold_core::{BatchResults, Deadline, Error, ErrorKind, Retry, SampleId};
use tensorhold_custody::Version;
use tensorhold_index::{Commit, CommitOutcome, LiveSample, SampleRef, Session};

use crate::store::Inner;

/// How often a commit that the index did not accept is sent, and the pause between attempts.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// The outcome of a commit.
#[derive(Debug)]
pub(crate) enum Committed {
    /// The sample is live, or was. Whether it replaced a generation is known unless the answer was lost.
    Yes { version: Version, may_have_replaced: bool },
    /// It was not applied; the reservation is unchanged.
    No(Error),
    /// It was not applied and never will be: the reservation was given up to find that out.
    GivenUp(Error),
    /// It may have been applied.
    Unknown(Error),
}

/// The version of a live sample, if this commit made it: for one that was reserved ahead that of the commit, which is its
/// generation.
fn version_of(live: &LiveSample, commit: &Commit) -> Option<Version> {
    if commit.becomes.is_none() {
        return (live.sample == commit.sample).then_some(live.record.version);
    }
    let reserved_as = live.record.record.reserved_as.as_ref()?;
    let is_ours = SampleRef::from(reserved_as) == commit.sample;
    is_ours.then_some(Version(live.sample.generation.get()))
}

impl Inner {
    /// Commits, and resolves ambiguous outcomes.
    pub(crate) async fn commit(&self, session: &Session, commits: &[Commit], deadline: Deadline) -> Vec<Committed> {
        if commits.is_empty() {
            return Vec::new();
        }
        let mut results = BatchResults::new(commits.len());
        let mut open = results.open();
        let mut unclear: Vec<(usize, Error)> = Vec::new();
        for attempt in 1..=TRIES {
            let these: Vec<Commit> = open.iter().map(|at| commits[*at].clone()).collect();
            let answers = self
                .runtime
                .index
                .commit(session, &these, self.runtime.left(deadline))
                .await;
            let mut again = Vec::new();
            for (at, answer) in open.into_iter().zip(answers) {
                let last = attempt == TRIES || self.runtime.left(deadline) <= PAUSE;
                match answer {
                    Ok(CommitOutcome { version, replaced }) => results.set(
                        at,
                        Committed::Yes {
                            version,
                            may_have_replaced: replaced,
                        },
                    ),
                    Err(error) if error.retry() == Retry::Ambiguous => unclear.push((at, error)),
                    Err(error) if !last && error.kind() == ErrorKind::Unavailable => again.push(at),
                    Err(error) => results.set(at, Committed::No(error)),
                }
            }
            if again.is_empty() {
                break;
            }
            open = again;
            tokio::time::sleep(PAUSE).await;
        }
        for (at, settled) in self.settle(session, commits, unclear).await {
            results.set(at, settled);
        }
        let forgotten = || Committed::Unknown(Error::internal("features.commit", "a commit got no answer (a bug)"));
        results.finish(forgotten)
    }

    /// Finds out whether commits were applied whose answers were lost, by giving up the reservations. If that succeeds,
    /// the commit was not applied and never will be.
    async fn settle(
        &self,
        session: &Session,
        commits: &[Commit],
        unclear: Vec<(usize, Error)>,
    ) -> Vec<(usize, Committed)> {
        let deadline = self.runtime.own_deadline();
        let left = || self.runtime.left(deadline);
        let mut settled = Vec::with_capacity(unclear.len());
        let mut open = unclear;
        for _ in 0..TRIES {
            if open.is_empty() {
                break;
            }
            let samples: Vec<SampleRef> = open.iter().map(|(at, _)| commits[*at].sample.clone()).collect();
            let answers = self.runtime.index.abort(session, &samples, left()).await;
            let (mut again, mut gone) = (Vec::new(), Vec::new());
            for ((at, error), answer) in open.into_iter().zip(answers) {
                match answer {
                    Ok(()) => settled.push((at, Committed::GivenUp(error.with_retry(Retry::Safe)))),
                    // No answer, or an index that is full: the reservation may still exist.
                    Err(failure)
                        if matches!(failure.kind(), ErrorKind::Unavailable | ErrorKind::Capacity)
                            && failure.retry() != Retry::Never =>
                    {
                        again.push((at, error));
                    }
                    // The reservation is gone: it was committed, or taken back by a sweep.
                    Err(_) => gone.push((at, error)),
                }
            }
            if !gone.is_empty() {
                let ids: Vec<SampleId> = gone.iter().map(|(at, _)| commits[*at].name().clone()).collect();
                match self.runtime.index.look(&ids, left()).await {
                    Ok(views) => settled.extend(gone.into_iter().zip(views).map(|((at, error), view)| {
                        let version = view.and_then(|view| version_of(&view, &commits[at]));
                        let found = |version| Committed::Yes {
                            version,
                            may_have_replaced: true,
                        };
                        (at, version.map_or(Committed::Unknown(error), found))
                    })),
                    // No answer: both questions are asked again.
                    Err(_) => again.extend(gone),
                }
            }
            open = again;
            if !open.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        }
        settled.extend(open.into_iter().map(|(at, error)| (at, Committed::Unknown(error))));
        settled
    }
}
