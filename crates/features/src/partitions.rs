//! A store that is larger than one cluster: several stores, and samples divided among them by their ids.
//!
//! Each partition is a store like any other ([`Partition`] names it), with its own records, sessions, budget and objects, on
//! whichever cluster it was placed. What belongs to one sample (put, get, answer) is a call to its partition
//! ([`Partitions::of`]). Only taking the next samples concerns all of them.
//!
//! # Taking from several queues
//! ```text
//! ask the first one ──has some──▶ taken
//!        │ has none now, or has not answered for a moment
//!        ▼
//! ask the next one too, and so on; those that had none wait ──the first that gets some──▶ taken
//! ```
//! - PA1: a take returns leases of one partition. The others are left before they have answered, or their answers are dropped:
//!   a lease that nobody has looked at goes back as if it had never been taken (module `tasks`).
//! - PA2: a partition that does not answer holds up no sample of another, except for a moment ([`HEDGE`]).
//! - PA3: an empty answer means that no partition had a sample, by its list or by its watch. If one could not be asked, the take
//!   fails. One that had none, and whose wait was cut short by the deadline, has none.
//! - PA4: once a partition has failed, the others are only asked for what they have now, and not for long ([`LOOK_WITHIN`]). A
//!   take that waited on would leave the failed one's samples until the deadline; so it fails, and the caller's next one asks
//!   again. No lease is lost by it (PA1).
//! - Takes begin at another partition each time, so that none is preferred. They are not in the order of the puts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tensorhold_core::{Error, ErrorKind, Partition, Result, Retry, SampleId};
use tensorhold_custody::GroupName;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::store::FeatureStore;
use crate::store::lease::Lease;

/// How long one partition is waited for before the next is asked as well. Several times what a take needs that finds samples,
/// so that a busy store is asked once for each take; and short, since a partition whose cluster is away costs this.
const HEDGE: Duration = Duration::from_millis(100);

/// How long the others are waited for that have not said yet whether they have samples, when one has failed: long enough for a
/// busy cluster.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// An error this close to the deadline counts as caused by it: clocks and timers round.
const CUT_SHORT: Duration = Duration::from_millis(10);

/// The partitions of a store, opened.
#[derive(Debug)]
pub struct Partitions {
    stores: Vec<FeatureStore>,
    next: AtomicUsize,
}

impl Partitions {
    /// All partitions of a store, in order.
    ///
    /// # Errors
    /// `Invalid` if they are not.
    pub fn new(stores: Vec<FeatureStore>) -> Result<Self> {
        let named: Option<Vec<Partition>> = stores
            .iter()
            .map(|store| Partition::named(&store.config().store))
            .collect();
        let expected = named.as_deref().and_then(|named| {
            let first = named.first()?;
            Partition::all(first.whole(), first.count()).ok()
        });
        if named.is_none() || named != expected {
            let names: Vec<&str> = stores.iter().map(|store| store.config().store.as_str()).collect();
            let message = "these stores are not all partitions of one store, in order";
            return Err(Error::invalid("features.partitions", message).with("stores", names.join(", ")));
        }
        Ok(Self {
            stores,
            next: AtomicUsize::new(0),
        })
    }

    /// The same, and the next take begins at this partition.
    #[must_use]
    pub fn beginning_at(self, partition: usize) -> Self {
        Self {
            next: AtomicUsize::new(partition),
            ..self
        }
    }

    /// The partitions, in order.
    pub fn stores(&self) -> &[FeatureStore] {
        &self.stores
    }

    /// The partition that has a sample.
    pub fn of(&self, sample: &SampleId) -> &FeatureStore {
        let count = u32::try_from(self.stores.len()).unwrap_or(u32::MAX);
        let number = usize::try_from(Partition::of_sample(sample, count)).unwrap_or_default();
        &self.stores[number]
    }

    /// Takes the next samples of a group, up to `count`, of one partition, and says which. Waits for the first one; an empty
    /// result at the deadline is not an error.
    ///
    /// # Errors
    /// If a partition could not be asked, and no other had a sample; at once, not at the deadline.
    pub async fn lease_next(&self, group: &GroupName, count: usize, within: Duration) -> Result<(usize, Vec<Lease>)> {
        // Stores may have clocks of their own, which do not know this deadline.
        let runtime = &self.stores[0].inner().runtime;
        let deadline = runtime.deadline(within);
        let left = || runtime.left(deadline);
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut turns = (0..self.stores.len()).map(|turn| first.wrapping_add(turn) % self.stores.len());
        let (has_none, failing) = (Notify::new(), CancellationToken::new());
        let mut asked = FuturesUnordered::new();
        let mut failed = None;
        loop {
            if let Some(at) = turns.next() {
                asked.push(self.next_of(at, group, count, &has_none, &failing, &left));
            }
            let more = turns.len() > 0;
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some((at, Ok(leases))) if !leases.is_empty() => return Ok((at, leases)),
                    Some((_, Ok(_))) => {}
                    Some((_, Err(error))) => {
                        failing.cancel();
                        failed = Some(error);
                    }
                    None if more => {}
                    None => break,
                },
                () = has_none.notified(), if more => {}
                () = tokio::time::sleep(HEDGE), if more => {}
                () = tokio::time::sleep(LOOK_WITHIN), if !more && failed.is_some() => break,
            }
        }
        failed.map_or(Ok((0, Vec::new())), Err)
    }

    /// Takes of one partition. Tells if it has no sample now, and waits for some unless another one fails.
    async fn next_of(
        &self,
        at: usize,
        group: &GroupName,
        count: usize,
        has_none: &Notify,
        failing: &CancellationToken,
        left: &(impl Fn() -> Duration + Sync),
    ) -> (usize, Result<Vec<Lease>>) {
        let store = &self.stores[at];
        let ready = store.lease_ready(group, count, left()).await;
        if !matches!(&ready, Ok(leases) if leases.is_empty()) {
            return (at, ready);
        }
        has_none.notify_one();
        let waited = tokio::select! {
            biased;
            () = failing.cancelled() => Ok(Vec::new()),
            leases = store.lease_next(group, count, left()) => leases,
        };
        // It has said that it has none, and only its wait was cut short.
        let is_cut_short = |error: &Error| (error.kind(), error.retry()) == (ErrorKind::Unavailable, Retry::Safe);
        match waited {
            Err(error) if is_cut_short(&error) && left() < CUT_SHORT => (at, Ok(Vec::new())),
            leases => (at, leases),
        }
    }
}
