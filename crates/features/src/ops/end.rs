//! Ending a store: everything that it holds is retired and freed.
//!
//! ```text
//! no other session is alive ─▶ retire a page ─▶ ask again … until no sample is live ─▶ sweep, and drop dead letters, until
//!    │ one is                       │ one is                                              nothing is left ─▶ freed
//!    ▼                              ▼
//!  Conflict                       Conflict: what was retired is retired, the rest stays
//! ```
//!
//! Committed samples have no owner: a run that died leaves them, because its resumption may need them. Ending the store is
//! how its user says that nobody does. Whatever fails, what was retired is retired, and another call goes on from there. The
//! store can be used again afterwards, and so can its name.

use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, Result, SampleId};
use tensorhold_index::{LiveSample, LiveSession, RecordQuery, Stage};

use crate::runtime::tasks::Caller;
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.end";
/// Samples in one call to the index.
const PAGE: usize = 256;
/// How often objects are tried again that could not be removed. The engine does not tell when they can.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Inner {
    /// `Conflict` if a process but this one and stewards has the store open.
    async fn is_ours_alone(&self, deadline: Deadline) -> Result<()> {
        // Asked for each time: this process may have lost its session and opened another.
        let session = self.runtime.sessions.current(OPERATION, deadline).await?;
        let alive = self.runtime.index.sessions(self.runtime.left(deadline)).await?;
        let uses_it = |other: &&LiveSession| other.id != session.id() && !other.is_steward();
        let busy: Vec<&LiveSession> = alive.iter().filter(uses_it).collect();
        if busy.is_empty() {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::Conflict,
            OPERATION,
            "other processes have this store open; stop them, wait until their sessions have ended, or say that the \
             store is to end under them",
        )
        .with("sessions", busy.len());
        let known = busy.iter().find_map(|other| other.identity.as_ref());
        Err(match known {
            Some(one) => error.with("one_of_them", format!("{} {} on {}", one.program, one.pid, one.host)),
            None => error,
        })
    }

    async fn end(&self, others: bool, caller: &Caller, deadline: Deadline) -> Result<u64> {
        let (mut ended, mut later, mut place) = (0, 0, None);
        let live = RecordQuery::of(Stage::Live);
        loop {
            if !caller.may_wait() {
                return Err(caller.ended(OPERATION, "the caller has left").with("ended", ended));
            }
            // Before each page: with many samples there is time for a process to open the store.
            if !others {
                let alone = self.is_ours_alone(deadline).await;
                alone.map_err(|error| error.with("ended", ended))?;
            }
            let left = self.runtime.left(deadline);
            let page = self.runtime.index.records(&live, place.as_ref(), PAGE, left).await?;
            later += page.later;
            let ids: Vec<SampleId> = page.records.into_iter().map(|found| found.sample.sample).collect();
            let views = self.runtime.index.look(&ids, self.runtime.left(deadline)).await?;
            let views: Vec<LiveSample> = views.into_iter().flatten().collect();
            for answer in self.retire_views(&views, deadline).await {
                match answer {
                    Ok(_) => ended += 1,
                    // Another process has ended it, or put it anew.
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced) => {}
                    Err(error) => return Err(error.with("ended", ended)),
                }
            }
            place = page.next;
            if place.is_none() {
                break;
            }
        }
        if later > 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                OPERATION,
                "samples are left that a later release has put; end the store with that one",
            )
            .with("ended", ended)
            .with("left", later));
        }
        self.reclaim.queue.drain(deadline).await?;
        // What sessions left that have ended: reservations, leases, samples that were to be freed. A put that its process did
        // not end stays in the engine until the engine's own timeout.
        loop {
            let dropped = self.drop_all_dead(deadline).await?;
            let swept = self.reclaim.sweep(deadline).await?;
            if !others {
                let alone = self.is_ours_alone(deadline).await;
                alone.map_err(|error| error.with("ended", ended))?;
            }
            // What a sweep takes back may be the last attempt of a group, and what it frees a dead letter. Other processes may
            // go on making such.
            let is_done = others || dropped + swept.taken_back.retired + swept.freed == 0;
            if swept.failed == 0 && is_done {
                return Ok(ended);
            }
            if swept.failed == 0 {
                continue;
            }
            if self.runtime.left(deadline) <= LOOK_EVERY {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    OPERATION,
                    "objects of samples that are to be freed could not be removed yet; they stay recorded, and another call \
                     goes on (puts that their processes did not end go away by the engine's own timeout)",
                )
                .with("ended", ended)
                .with("left", swept.failed));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = caller.waits_end() => {
                    return Err(caller.ended(OPERATION, "the caller has left").with("ended", ended));
                }
            }
        }
    }
}

impl FeatureStore {
    /// Ends everything that the store holds, and returns once it is freed. `Conflict` if another session is alive (those of
    /// stewards aside), or opens meanwhile, unless `others`: then readers and producers there get errors. Returns how many
    /// samples ended. If the caller leaves, the rest stays.
    pub async fn end(&self, others: bool, within: Duration) -> Result<u64> {
        self.run_for(OPERATION, move |inner, caller| async move {
            inner.end(others, &caller, inner.deadline(within)).await
        })
        .await
    }
}
