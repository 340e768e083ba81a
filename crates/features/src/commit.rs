//! Committing, and finding out what became of it.
//!
//! ```text
//!            yes ─────────────────────────────────────────────────▶ Yes
//! commit ──┬ no, for good ────────────────────────────────────────▶ No
//!          ├ the index did not take it: again, a few times
//!          └ unclear ─ give the reservation up ─┬ done ───────────▶ GivenUp: it was not and never will be made
//!                                               ├ it is gone: look ─ it is live ─▶ Yes
//!                                               └ no answer, or neither ─────────▶ Unknown
//! ```
//! Nothing of a sample is removed while its commit is `Unknown`: it may be live. If it is not, its reservation runs out,
//! and a sweep clears up.

use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Retry};
use holdfast_custody::Version;
use holdfast_index::{Commit, SampleRef, Session};

use crate::store::Inner;

/// How often a commit that the index did not take is sent again, and after which pause.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// What became of a commit.
#[derive(Debug)]
pub(crate) enum Committed {
    /// It is live, or was.
    Yes(Version),
    /// It was not made; the reservation is as it was.
    No(Error),
    /// It was not made and never will be: finding that out took giving the reservation up.
    GivenUp(Error),
    /// It may have been made.
    Unknown(Error),
}

impl Inner {
    /// Commits, and finds out what became of it.
    pub(crate) async fn commit(&self, session: &Session, commits: &[Commit], deadline: Deadline) -> Vec<Committed> {
        if commits.is_empty() {
            return Vec::new();
        }
        let mut results: Vec<Option<Committed>> = commits.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..commits.len()).collect();
        for attempt in 1..=TRIES {
            let these: Vec<Commit> = open.iter().map(|at| commits[*at].clone()).collect();
            let answers = self
                .index
                .commit(session, &these, deadline.remaining(&*self.clock))
                .await;
            let mut again = Vec::new();
            for (at, answer) in open.into_iter().zip(answers) {
                let last = attempt == TRIES || deadline.remaining(&*self.clock) <= PAUSE;
                match answer {
                    Ok(version) => results[at] = Some(Committed::Yes(version)),
                    Err(error) if error.retry() == Retry::Ambiguous => {
                        results[at] = Some(self.settle(session, &commits[at].sample, error).await);
                    }
                    Err(error) if !last && error.kind() == ErrorKind::Unavailable => again.push(at),
                    Err(error) => results[at] = Some(Committed::No(error)),
                }
            }
            if again.is_empty() {
                break;
            }
            open = again;
            tokio::time::sleep(PAUSE).await;
        }
        let forgotten = || Committed::Unknown(Error::internal("features.commit", "a commit got no answer"));
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(forgotten))
            .collect()
    }

    /// Finds out whether a commit was made whose answer was lost: giving the reservation up tells. If that works, the
    /// commit was not and never will be made.
    async fn settle(&self, session: &Session, sample: &SampleRef, error: Error) -> Committed {
        let deadline = self.deadline(self.config.call_within);
        for _ in 0..TRIES {
            let left = deadline.remaining(&*self.clock);
            let answers = self.index.abort(session, std::slice::from_ref(sample), left).await;
            match answers.into_iter().next() {
                Some(Ok(())) => return Committed::GivenUp(error.with_retry(Retry::Safe)),
                // No answer, or an index that is full: the reservation may be there still.
                Some(Err(again))
                    if matches!(again.kind(), ErrorKind::Unavailable | ErrorKind::Capacity)
                        && again.retry() != Retry::Never => {}
                // The reservation is gone: it was committed, or taken back by somebody else.
                _ => {
                    let left = deadline.remaining(&*self.clock);
                    let live = self.index.look(std::slice::from_ref(&sample.sample), left).await;
                    match live.map(|views| views.into_iter().flatten().next()) {
                        Ok(Some(view)) if view.sample == *sample => return Committed::Yes(view.record.version),
                        Ok(_) => return Committed::Unknown(error),
                        Err(_) => {}
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        Committed::Unknown(error)
    }
}
