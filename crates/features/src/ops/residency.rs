//! Where samples are, and bringing those on SSD to memory before they are read.
//!
//! Hints, all of it: a sample that was in memory a moment ago may be on SSD now, and a sample that is read ahead may be
//! taken by another process. A get reads whatever is there, from wherever it is.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, ObjectKey, Result, SampleId};
use tensorhold_custody::GroupName;
use tensorhold_engine::Presence;
use tensorhold_prefetch::{Prefetch, PrefetchStats, Priority};

use crate::record::plan::SampleObjects;
use crate::store::lease::Found;
use crate::store::{FeatureStore, Inner};

/// How long it may take to find out which samples to read ahead: after that they come too late.
const READ_AHEAD_WITHIN: Duration = Duration::from_secs(1);

/// Where the objects of a sample are. If they are in different places, the slowest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// In this process's memory, or in DRAM; some of it was read ahead.
    Local,
    /// In DRAM of a holder.
    Dram,
    /// On SSD.
    Ssd,
    /// An object is not there: its holder may be away, or it is lost.
    Missing,
}

impl Tier {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Dram => "dram",
            Self::Ssd => "ssd",
            Self::Missing => "missing",
        }
    }
}

impl Inner {
    fn objects_of(&self, found: &Found) -> Result<Vec<ObjectKey>> {
        found.description.object_keys(SampleObjects {
            store: &self.runtime.config.store,
            sample: &found.reference,
        })
    }

    /// Begins to read these samples ahead. Does not wait for it.
    fn read_ahead(&self, samples: &[Found]) -> Result<Prefetch> {
        let mut keys = Vec::new();
        for found in samples {
            keys.extend(self.objects_of(found)?);
        }
        Ok(self.runtime.prefetch.prefetch(&keys, Priority::Guess))
    }

    async fn presences(&self, keys: Vec<ObjectKey>, deadline: Deadline) -> Result<Vec<Presence>> {
        let prefetch = Arc::clone(&self.runtime.prefetch);
        let ask = move |within| prefetch.exists(&keys, within);
        self.runtime.blocking.run("features.tiers", deadline, ask).await
    }
}

impl FeatureStore {
    /// Where samples are, without side effects; none for a sample that is not live.
    pub async fn tiers(&self, samples: &[SampleId], within: Duration) -> Result<Vec<Option<Tier>>> {
        let inner = Arc::clone(self.inner());
        let deadline = inner.deadline(within);
        let found = self.find(samples, within).await?;
        let mut keys = Vec::new();
        let mut counts = Vec::with_capacity(found.len());
        for found in &found {
            let objects = found.as_ref().map(|found| inner.objects_of(found)).transpose()?;
            counts.push(objects.as_ref().map(Vec::len));
            keys.extend(objects.unwrap_or_default());
        }
        let places = inner.presences(keys.clone(), deadline).await?;
        let mut objects = keys.into_iter().zip(places).map(|(key, presence)| match presence {
            Presence::Present { dram: 1.., .. } => Tier::Dram,
            Presence::Present { .. } if inner.runtime.prefetch.is_local(&key) => Tier::Local,
            Presence::Present { .. } => Tier::Ssd,
            Presence::Absent | Presence::Unfinished => Tier::Missing,
        });
        let tier = |count: Option<usize>| count.map(|count| slowest(objects.by_ref().take(count)));
        Ok(counts.into_iter().map(tier).collect())
    }

    /// Begins to bring samples that are on SSD only to this process's memory. Returns once their records are read; what it
    /// returns tells how far it is. Samples that are not live are passed over.
    pub async fn prefetch(&self, samples: &[SampleId], within: Duration) -> Result<Prefetch> {
        let found: Vec<Found> = self.find(samples, within).await?.into_iter().flatten().collect();
        self.inner().read_ahead(&found)
    }

    /// Begins to read ahead up to `count` samples that are ready for this group: those that the next takes of this
    /// process get, if each takes `at_once`. A guess: other processes take samples, too.
    pub async fn prefetch_ready(
        &self,
        group: &GroupName,
        count: usize,
        at_once: usize,
        within: Duration,
    ) -> Result<Prefetch> {
        let inner = self.inner();
        let deadline = inner.deadline(within);
        let ready = inner.runtime.index.peek(group, count, at_once, within).await?;
        let samples: Vec<SampleId> = ready.into_iter().map(|sample| sample.sample).collect();
        self.prefetch(&samples, inner.runtime.left(deadline)).await
    }

    /// [`FeatureStore::prefetch_ready`] as a task of the store, for a caller that does not wait for it. A failure costs
    /// nothing but the time that it would have saved.
    pub fn read_ahead(&self, group: &GroupName, count: usize, at_once: usize) {
        let mut running = self.inner().ahead.lock();
        // One at a time: another one would find much the same.
        if running.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let (store, group) = (self.clone(), group.clone());
        let task = self.inner().runtime.tasks.spawn(async move {
            let ready = store.prefetch_ready(&group, count, at_once, READ_AHEAD_WITHIN);
            match tokio::time::timeout(READ_AHEAD_WITHIN, ready).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "the next samples were not read ahead"),
                Err(_) => tracing::debug!("the next samples were not known in time to be read ahead"),
            }
        });
        *running = Some(task); // closing ends it
    }

    /// The counters of its prefetcher so far.
    pub fn prefetch_stats(&self) -> PrefetchStats {
        self.inner().runtime.prefetch.stats()
    }
}

/// A sample without objects is in DRAM: there is nothing to wait for.
fn slowest(objects: impl Iterator<Item = Tier>) -> Tier {
    let all: Vec<Tier> = objects.collect();
    let local = all.contains(&Tier::Local);
    match all.into_iter().max().unwrap_or(Tier::Dram) {
        Tier::Dram if local => Tier::Local,
        slowest => slowest,
    }
}
