//! Leasing the next samples of a group, and waiting for some without polling.

use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Deadline, ErrorKind, Result, Retry};
use tensorhold_custody::GroupName;

use crate::index::TxnIndex;
use crate::ready::Ready;
use crate::ready::waiting::{Tried, Woken};
use crate::record::refusal::is_about_one_record;
use crate::record::types::{LeaseGrant, SampleRef, Terms};
use crate::txn::session::{Session, SessionEnded};

/// An error this close to the deadline counts as caused by the deadline. More than zero because clocks and timers
/// round.
const CUT_SHORT: Duration = Duration::from_millis(10);

/// The result of one attempt to read the ready list and lease from it.
enum Next {
    Taken(Vec<LeaseGrant>),
    /// Another consumer was faster, or new samples have come: try again.
    Again,
    /// The deadline passed and no sample came.
    Nothing,
}

impl TxnIndex {
    /// Leases up to `count` samples. Waits for the first one until the deadline; an empty result means that none came.
    pub(crate) async fn do_lease_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        deadline: Deadline,
    ) -> Result<Vec<LeaseGrant>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut looked = false;
        loop {
            match self
                .look_and_take(session, group, count, ticks, terms, &mut looked, deadline)
                .await
            {
                Ok(Next::Taken(held)) => return Ok(held),
                Ok(Next::Nothing) => return Ok(Vec::new()),
                Ok(Next::Again) if deadline.passed(self.core.clock()) => return Ok(Vec::new()),
                Ok(Next::Again) => {}
                // The last attempt was cut short by the deadline; the one before it found nothing to lease.
                Err(error)
                    if looked
                        && (error.kind(), error.retry()) == (ErrorKind::Unavailable, Retry::Safe)
                        && deadline.remaining(self.core.clock()) < CUT_SHORT =>
                {
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Leases samples that are ready; if there are none, waits for some. Sets `looked` once the list has been read.
    ///
    /// When the caller has left, reads and waits end at once. The lease attempt does not: no caller would know of the
    /// leases that it was granted.
    #[expect(clippy::too_many_arguments, reason = "one step of a wait")]
    async fn look_and_take(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        looked: &mut bool,
        deadline: Deadline,
    ) -> Result<Next> {
        let ready = tokio::select! {
            biased;
            () = terms.cancelled.cancelled() => return Ok(Next::Nothing),
            ready = self.ready.find(session, group, count, deadline) => ready?,
        };
        let first = !std::mem::replace(looked, true);
        let ready = match ready {
            Ready::Some(ready) => ready,
            Ready::None(_) if !terms.waits => return Ok(Next::Nothing),
            Ready::None(version) => {
                let woken = tokio::select! {
                    biased;
                    () = terms.cancelled.cancelled() => None,
                    woken = self.ready.wait(session, group, count, version, deadline) => woken?,
                };
                match woken {
                    Some(Woken::Take(ready)) => ready,
                    Some(Woken::Look) => return Ok(Next::Again),
                    Some(Woken::Failed(error)) => return Err(error),
                    None => return Ok(Next::Nothing),
                }
            }
        };
        // Too close to the deadline to lease: the outcome might stay ambiguous. A call that was this short from the
        // start may try.
        if !first && deadline.remaining(self.core.clock()) < CUT_SHORT {
            return Ok(Next::Nothing);
        }
        let mut held = Vec::with_capacity(ready.len());
        let mut tried = Vec::with_capacity(ready.len());
        let mut failed = None;
        let (list, now) = (self.ready.list(group), self.core.clock().now());
        let mut strays = Vec::new();
        let refused = Mutex::new(Vec::new());
        let usable = |sample: &SampleRef, description: &[u8]| {
            let usable = (terms.usable)(sample, description);
            if usable.is_err() {
                refused.lock().push(sample.clone());
            }
            usable
        };
        let terms = Terms {
            usable: &usable,
            ..terms
        };
        // The copies in the ready list allow a first attempt without reading the records.
        let results = self
            .do_lease(session, &ready, Some(group), ticks, terms, deadline)
            .await;
        for (found, result) in ready.iter().zip(results) {
            let error = match result {
                Ok(lease) => {
                    tried.push(Tried::Leased(lease.seen.version));
                    held.push(lease);
                    continue;
                }
                Err(error) => error,
            };
            let is_gone = match error.kind() {
                ErrorKind::Conflict | ErrorKind::NotFound => true,
                ErrorKind::Fenced => session.is_alive() && error.cause::<SessionEnded>().is_none(),
                _ => false,
            };
            if is_gone {
                tried.push(Tried::Gone);
                // Another consumer was faster, or the sample was retired in between. If that happens twice, the entry
                // may be a stray.
                if list.doubt(&found.sample) {
                    strays.push(found.clone());
                }
            } else if is_about_one_record(&error) || refused.lock().contains(&found.sample) {
                tried.push(Tried::Gone);
                // Written by a later release, refused by the terms, or unusable in itself: take other samples
                // meanwhile.
                tracing::debug!(%error, sample = %found.sample.sample, "a sample is passed over");
                list.pass_over(&found.sample, now);
            } else {
                tried.push(Tried::Unclear);
                failed = Some(error);
            }
        }
        ready.settle(tried);
        if !strays.is_empty()
            && let Err(error) = self.ready.set_strays_aside(group, &strays, deadline).await
        {
            tracing::debug!(%error, "stray entries of a ready list could not be set aside; they stay for now");
        }
        // Leases that were granted beside an error must be returned, or no caller would know of them.
        match failed {
            _ if !held.is_empty() => Ok(Next::Taken(held)),
            Some(error) => Err(error),
            None => Ok(Next::Again),
        }
    }
}
