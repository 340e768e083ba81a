//! Dead letters: samples that a group could not use within its attempts. Their states are in `tensorhold-custody`.

use std::time::Duration;

use tensorhold_core::{Deadline, Result};
use tensorhold_custody::Version;
use tensorhold_index::{ListPlace, RecordList, RecordQuery, SampleRecord, SampleRef, Stage};

use crate::store::{FeatureStore, Inner};

const REQUEUE: &str = "features.requeue";
const DROP: &str = "features.drop_dead";
/// Records in one call to the index.
const PAGE: usize = 256;

impl Inner {
    async fn requeue(&self, samples: &[SampleRef], deadline: Deadline) -> Vec<Result<Version>> {
        let session = match self.runtime.sessions.current(REQUEUE, deadline).await {
            Ok(session) => session,
            Err(error) => return vec![Err(error); samples.len()],
        };
        let left = self.runtime.left(deadline);
        let results = self.runtime.index.requeue(&session, samples, left).await;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.runtime.sessions.refused(&session, error);
        }
        results
    }

    pub(crate) async fn drop_dead(&self, samples: &[SampleRef], deadline: Deadline) -> Vec<Result<()>> {
        let session = match self.runtime.sessions.current(DROP, deadline).await {
            Ok(session) => session,
            Err(error) => return vec![Err(error); samples.len()],
        };
        let left = self.runtime.left(deadline);
        let dropped = self.runtime.index.drop_dead(&session, samples, left).await;
        for result in &dropped {
            match result {
                Ok(true) => self.reclaim.queue.collect_soon(),
                Ok(false) => {}
                Err(error) => {
                    self.runtime.sessions.refused(&session, error);
                }
            }
        }
        dropped.into_iter().map(|result| result.map(drop)).collect()
    }

    /// Drops all dead letters. Returns how many there were.
    pub(crate) async fn drop_all_dead(&self, deadline: Deadline) -> Result<usize> {
        let query = RecordQuery::of(Stage::Dead);
        let (mut place, mut dropped) = (None, 0);
        loop {
            let left = self.runtime.left(deadline);
            let page = self.runtime.index.records(&query, place.as_ref(), PAGE, left).await?;
            let letters: Vec<SampleRef> = page.records.into_iter().map(|record| record.sample).collect();
            for result in self.drop_dead(&letters, deadline).await {
                match result {
                    // Another process was faster.
                    Err(error) if error.kind() == tensorhold_core::ErrorKind::NotFound => {}
                    result => {
                        result?;
                        dropped += 1;
                    }
                }
            }
            place = page.next;
            if place.is_none() {
                return Ok(dropped);
            }
        }
    }
}

impl FeatureStore {
    /// Records of this store in pages, for people: see [`tensorhold_index::Index::records`].
    pub async fn records(
        &self,
        query: &RecordQuery,
        after: Option<&ListPlace>,
        limit: usize,
        within: Duration,
    ) -> Result<RecordList> {
        self.inner().runtime.index.records(query, after, limit, within).await
    }

    /// The records of all generations of a sample, the oldest first.
    pub async fn records_of(&self, sample: &tensorhold_core::SampleId, within: Duration) -> Result<Vec<SampleRecord>> {
        self.inner().runtime.index.records_of(sample, within).await
    }

    /// Puts dead letters back into circulation: the groups that were out of attempts get them again, with all their attempts.
    /// `Conflict` if their bytes are gone (they are kept only if the settings say so), or if the sample was put again.
    pub async fn requeue(&self, samples: &[SampleRef], within: Duration) -> Vec<Result<Version>> {
        let samples = samples.to_vec();
        self.run_batch(REQUEUE, samples.len(), |inner| async move {
            inner.requeue(&samples, inner.deadline(within)).await
        })
        .await
    }

    /// Drops dead letters, and has their bytes removed if they were kept.
    pub async fn drop_dead(&self, samples: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        let samples = samples.to_vec();
        self.run_batch(DROP, samples.len(), |inner| async move {
            inner.drop_dead(&samples, inner.deadline(within)).await
        })
        .await
    }
}
