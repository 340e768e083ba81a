//! Taking samples out of circulation, from any process, and retained ones back into it.

use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, Result, SampleId};
use tensorhold_custody::Reason;
use tensorhold_index::{AckOutcome, LiveSample, SampleRef};

use crate::record::description::Description;
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.abort";
/// How often a sample is looked up again because it was put anew between the look and the retirement.
const LOOKS: usize = 4;

impl Inner {
    pub(crate) async fn abort(&self, samples: &[SampleId], deadline: Deadline) -> Vec<Result<()>> {
        let mut given_up = Vec::with_capacity(samples.len());
        for sample in samples {
            let left = self.runtime.left(deadline);
            // A put that is already committing finishes first; then there is a live sample to retire.
            given_up.push(tokio::time::timeout(left, self.inflight_puts.give_up(sample)).await);
        }
        let retired = self.abort_live(samples, deadline).await;
        let both = given_up.into_iter().zip(retired);
        both.map(|both| match both {
            (Ok(true), Err(error)) if error.kind() == ErrorKind::NotFound => Ok(()),
            (_, retired) => retired,
        })
        .collect()
    }

    /// Retires whichever incarnations are live.
    async fn abort_live(&self, samples: &[SampleId], deadline: Deadline) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = samples.iter().map(|_| Ok(())).collect();
        let mut open: Vec<usize> = (0..samples.len()).collect();
        for _ in 0..LOOKS {
            let ids: Vec<SampleId> = open.iter().map(|at| samples[*at].clone()).collect();
            let views = match self.runtime.index.look(&ids, self.runtime.left(deadline)).await {
                Ok(views) => views,
                Err(error) => {
                    open.iter().for_each(|at| results[*at] = Err(error.clone()));
                    return results;
                }
            };
            // What a look does not find is gone, whatever an earlier turn has met.
            open.iter().for_each(|at| results[*at] = Err(gone(&samples[*at])));
            let (live, views): (Vec<usize>, Vec<LiveSample>) = open
                .iter()
                .zip(views)
                .filter_map(|(at, view)| Some((*at, view?)))
                .unzip();
            let mut again = Vec::new();
            for (at, retired) in live.into_iter().zip(self.retire_views(&views, deadline).await) {
                // Put anew or retired since the look: look again.
                let changed = |error: &Error| matches!(error.kind(), ErrorKind::Fenced | ErrorKind::NotFound);
                if retired.as_ref().is_err_and(changed) {
                    again.push(at);
                }
                results[at] = retired.map(|_| ());
            }
            open = again;
            if open.is_empty() {
                break;
            }
        }
        results
    }

    /// Retires exactly these incarnations, all in one call to the index.
    pub(crate) async fn retire_views(&self, views: &[LiveSample], deadline: Deadline) -> Vec<Result<AckOutcome>> {
        if views.is_empty() {
            return Vec::new();
        }
        let session = match self.runtime.sessions.current(OPERATION, deadline).await {
            Ok(session) => session,
            Err(error) => return vec![Err(error); views.len()],
        };
        let samples: Vec<SampleRef> = views.iter().map(|view| view.sample.clone()).collect();
        let left = self.runtime.left(deadline);
        let answers = self
            .runtime
            .index
            .retire(&session, &samples, Reason::Aborted, left)
            .await;
        for (view, answer) in views.iter().zip(&answers) {
            match (answer, Description::from_bytes(&view.description)) {
                (Err(error), _) => {
                    self.runtime.sessions.refused(&session, error);
                }
                (Ok(answer), Ok(description)) => self.reclaim.after_answer(&view.sample, &description, *answer),
                (Ok(_), Err(error)) => {
                    tracing::error!(%error, sample = %view.sample.sample, "it is not known which objects to remove")
                }
            }
        }
        answers
    }

    async fn retire(&self, samples: &[SampleRef], deadline: Deadline) -> Vec<Result<AckOutcome>> {
        let ids: Vec<SampleId> = samples.iter().map(|sample| sample.sample.clone()).collect();
        let views = match self.runtime.index.look(&ids, self.runtime.left(deadline)).await {
            Ok(views) => views,
            Err(error) => return vec![Err(error); samples.len()],
        };
        let live = |(sample, view): (&SampleRef, Option<LiveSample>)| view.filter(|view| view.sample == *sample);
        let views: Vec<Option<LiveSample>> = samples.iter().zip(views).map(live).collect();
        let found: Vec<LiveSample> = views.iter().flatten().cloned().collect();
        let mut answers = self.retire_views(&found, deadline).await.into_iter();
        let answer = |(sample, view): (&SampleRef, Option<LiveSample>)| {
            let answer = view.and_then(|_| answers.next());
            answer.unwrap_or_else(|| Err(not_live(sample)))
        };
        samples.iter().zip(views).map(answer).collect()
    }
}

fn gone(sample: &SampleId) -> Error {
    let message = "there is no such sample, or not any more";
    Error::new(ErrorKind::NotFound, OPERATION, message).with("sample", sample)
}

fn not_live(sample: &SampleRef) -> Error {
    let message = "this generation of the sample is not live, or not any more";
    Error::new(ErrorKind::NotFound, OPERATION, message)
        .with("sample", &sample.sample)
        .with("generation", sample.generation)
}

impl FeatureStore {
    /// Takes exactly these generations out of circulation, whichever process put them and whichever reads them. Their
    /// bytes are freed when no reader is left. A later generation of the same sample stays.
    pub async fn retire(&self, samples: &[SampleRef], within: Duration) -> Vec<Result<AckOutcome>> {
        let samples = samples.to_vec();
        self.run_batch(OPERATION, samples.len(), |inner| async move {
            inner.retire(&samples, inner.deadline(within)).await
        })
        .await
    }

    /// Takes samples out of circulation, whichever process put them and whichever reads them: gets of their readers
    /// fail from now on. Every put of these samples that this process has begun is given up instead of committed
    /// (`Fenced`), whatever it waits for. A sample that is neither live nor being put here is `NotFound`.
    pub async fn abort(&self, samples: &[SampleId], within: Duration) -> Vec<Result<()>> {
        let samples = samples.to_vec();
        self.run_batch("features.abort", samples.len(), |inner| async move {
            inner.abort(&samples, inner.deadline(within)).await
        })
        .await
    }

    /// Starts another epoch for retained samples: every group that was done with them gets them again.
    pub async fn reopen(&self, samples: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        const OPERATION: &str = "features.reopen";
        let samples = samples.to_vec();
        self.run_batch(OPERATION, samples.len(), |inner| async move {
            let deadline = inner.deadline(within);
            match inner.runtime.sessions.current(OPERATION, deadline).await {
                Ok(session) => {
                    inner
                        .runtime
                        .index
                        .reopen(&session, &samples, inner.runtime.left(deadline))
                        .await
                }
                Err(error) => vec![Err(error); samples.len()],
            }
        })
        .await
    }
}
