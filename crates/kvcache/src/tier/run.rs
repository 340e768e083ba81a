//! Carrying out one operation: from the page numbers of the planner to pages in memory, and from outcomes back to one
//! completion.

use tensorhold_core::{Error, Result};
use tensorhold_prefetch::Priority;

use super::copier::{Copied, DeviceCopier};
use super::host::HostMemoryMap;
use super::inflight::Settling;
use super::page::{CallOptions, Page, PageGot, PagePut};
use super::store::PageStore;
use super::table::Job;
use crate::plan::{Completion, Failure, HostPageAt, Namespace, Work};

/// The resources that operations are carried out with.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) store: std::sync::Arc<PageStore>,
    pub(super) names: Namespace,
    pub(super) host: HostMemoryMap,
    pub(super) copier: std::sync::Arc<dyn DeviceCopier>,
}

/// How far an operation came: pages from the start, and why not all.
struct Ended {
    completed: usize,
    failure: Option<Failure>,
}

impl Backend {
    /// Carries out a job. When this returns, `settling` knows all memory that the engine still uses.
    pub(super) fn carry_out(&self, job: &Job, settling: &Settling) -> Completion {
        let clock = self.store.clock();
        let options = CallOptions {
            within: job.deadline.since(clock.now()),
            prefix_only: true,
            stop: job.stop.clone(),
        };
        let ended = match &job.work {
            Work::Query(keys) => self.query(keys.iter().map(|page| &page.key), &options),
            Work::Prefetch(pages) => self.prefetch(pages, &options, settling),
            Work::Backup(pages) => self.backup(pages, &options, settling),
            Work::LoadBack(pages) => Ok(copied(self.copier.load_back(pages, options.within), pages.len())),
            Work::WriteBack(pages) => Ok(copied(self.copier.write_back(pages, options.within), pages.len())),
        };
        let Ended { completed, failure } = ended.unwrap_or_else(|error| {
            tracing::warn!(operation = %job.id, kind = job.work.name(), %error, "an operation of the KV tier failed");
            Ended {
                completed: 0,
                failure: Some(Failure::Failed),
            }
        });
        // A failure because time ran out is distinguished from one that would happen again.
        let failure = match failure {
            Some(Failure::Failed) if job.deadline <= clock.now() => Some(Failure::TimedOut),
            other => other,
        };
        Completion {
            operation: job.id,
            completed: u32::try_from(completed).unwrap_or(u32::MAX),
            failure,
        }
    }

    fn query<'a>(&self, keys: impl Iterator<Item = &'a crate::plan::PageKey>, options: &CallOptions) -> Result<Ended> {
        let names: Vec<_> = keys.map(|key| self.names.object_name(key)).collect::<Result<_>>()?;
        // A request waits for these pages: its prefetch follows, and waits for what is on its way.
        let prefetch = self.store.config().prefetch_on_query.then_some(Priority::Wanted);
        let hits = self
            .store
            .prefix_hits(&names, Some(self.host.page_bytes()), prefetch, options.within)?;
        Ok(Ended {
            completed: hits,
            failure: (hits < names.len()).then_some(Failure::Miss),
        })
    }

    fn pages(&self, pages: &[HostPageAt]) -> Result<Vec<Page>> {
        let page = |page: &HostPageAt| {
            Ok(Page::new(
                self.names.object_name(&page.key)?,
                self.host.parts(page.host)?,
            ))
        };
        pages.iter().map(page).collect()
    }

    fn prefetch(&self, pages: &[HostPageAt], options: &CallOptions, settling: &Settling) -> Result<Ended> {
        let outcomes = self.store.get_settling(&self.pages(pages)?, options, settling);
        let completed = outcomes.iter().take_while(|outcome| outcome.is_loaded()).count();
        let failure = outcomes.get(completed).map(|outcome| match outcome {
            PageGot::Miss => Failure::Miss,
            PageGot::WrongLength { .. } | PageGot::Corrupt(_) => Failure::Corrupt,
            PageGot::Skipped => Failure::Cancelled,
            PageGot::Failed(error) => failed(error),
            PageGot::Loaded => Failure::Failed,
        });
        Ok(Ended { completed, failure })
    }

    fn backup(&self, pages: &[HostPageAt], options: &CallOptions, settling: &Settling) -> Result<Ended> {
        let outcomes = self.store.put_missing(&self.pages(pages)?, options, settling);
        let completed = outcomes.iter().take_while(|outcome| outcome.is_stored()).count();
        let failure = outcomes.get(completed).map(|outcome| match outcome {
            PagePut::Full => Failure::Full,
            PagePut::Skipped => Failure::Cancelled,
            PagePut::Failed(error) => failed(error),
            PagePut::Stored => Failure::Failed,
        });
        Ok(Ended { completed, failure })
    }
}

fn failed(error: &Error) -> Failure {
    tracing::debug!(%error, "a page of the KV tier failed");
    Failure::Failed
}

fn copied(copied: Copied, pages: usize) -> Ended {
    let completed = usize::try_from(copied.pages).unwrap_or(usize::MAX).min(pages);
    if let Some(error) = &copied.error {
        tracing::warn!(%error, "a copy between host and device failed");
    }
    Ended {
        completed,
        failure: (completed < pages || copied.error.is_some()).then_some(Failure::Failed),
    }
}
