//! Taking samples out of circulation, from any process, and retained ones back into it.

use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Result, SampleId};
use holdfast_custody::Reason;
use holdfast_index::{AckOutcome, LiveSample, SampleRef};

use crate::record::description::Description;
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.abort";
/// How often a sample is looked up again because it was put anew between the look and the retirement.
const LOOKS: usize = 4;

impl Inner {
    pub(crate) async fn abort(&self, samples: &[SampleId], deadline: Deadline) -> Vec<Result<()>> {
        let mut results = Vec::with_capacity(samples.len());
        for sample in samples {
            let left = self.runtime.left(deadline);
            // A put that is already committing finishes first; then there is a live sample to retire.
            let given_up = tokio::time::timeout(left, self.inflight_puts.give_up(sample)).await;
            let retired = self.abort_live(sample, deadline).await;
            results.push(match (given_up, retired) {
                (Ok(true), Err(error)) if error.kind() == ErrorKind::NotFound => Ok(()),
                (_, retired) => retired,
            });
        }
        results
    }

    async fn abort_live(&self, sample: &SampleId, deadline: Deadline) -> Result<()> {
        let mut last = None;
        for _ in 0..LOOKS {
            let left = self.runtime.left(deadline);
            let mut views = self.runtime.index.look(std::slice::from_ref(sample), left).await?;
            let Some(view) = views.pop().flatten() else {
                let gone = Error::new(
                    ErrorKind::NotFound,
                    OPERATION,
                    "there is no such sample, or not any more",
                );
                return Err(gone.with("sample", sample));
            };
            match self.retire_view(&view, deadline).await {
                Ok(_) => return Ok(()),
                // Put anew or retired since the look: look again.
                Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::NotFound) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::internal(OPERATION, "the sample was never looked up; this is a bug")))
    }

    async fn retire_view(&self, view: &LiveSample, deadline: Deadline) -> Result<AckOutcome> {
        let session = self.runtime.sessions.current(OPERATION, deadline).await?;
        let (samples, left) = (std::slice::from_ref(&view.sample), self.runtime.left(deadline));
        let mut answers = self
            .runtime
            .index
            .retire(&session, samples, Reason::Aborted, left)
            .await;
        let answer = answers
            .pop()
            .unwrap_or_else(|| Err(Error::internal(OPERATION, "the index returned no answer (a bug)")));
        if let Err(error) = &answer {
            self.runtime.sessions.refused(&session, error);
        }
        let answer = answer?;
        match Description::from_bytes(&view.description) {
            Ok(description) => self.reclaim.after_answer(&view.sample, &description, answer),
            Err(error) => {
                tracing::error!(%error, sample = %view.sample.sample, "it is not known which objects to remove")
            }
        }
        Ok(answer)
    }

    async fn retire(&self, samples: &[SampleRef], deadline: Deadline) -> Vec<Result<AckOutcome>> {
        let ids: Vec<SampleId> = samples.iter().map(|sample| sample.sample.clone()).collect();
        let views = match self.runtime.index.look(&ids, self.runtime.left(deadline)).await {
            Ok(views) => views,
            Err(error) => return vec![Err(error); samples.len()],
        };
        let mut results = Vec::with_capacity(samples.len());
        for (sample, view) in samples.iter().zip(views) {
            results.push(match view {
                Some(view) if view.sample == *sample => self.retire_view(&view, deadline).await,
                _ => Err(Error::new(
                    ErrorKind::NotFound,
                    OPERATION,
                    "this generation of the sample is not live, or not any more",
                )
                .with("sample", &sample.sample)
                .with("generation", sample.generation)),
            });
        }
        results
    }
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
