//! Getting tensors: exactly the committed bytes, or an error.
//!
//! ```text
//! memory (pool, or the caller's) ─▶ bytes move, checks follow ─▶ the lease still holds? ─▶ lengths, checks ─▶ tensors
//!                                     │ renewed at half its time      │ no                   │ differ
//!                                     ▼                               ▼                      ▼
//!                                   missing, and the lease holds:   Fenced                 Corrupt
//!                                   Unavailable, and suspected of
//!                                   being lost (module `loss`)
//! ```
//!
//! # When the index is asked about the lease
//! **Bytes that nothing vouches for** (put without checksums): after the last of them has moved. If the answer is yes,
//! the objects were not removed while they were read.
//!
//! **Bytes that are compared with the committed ones** (checksums, or a seal) can be trusted without a lease. Then the
//! only question is whether the token was valid at some moment of the call, and it is asked while the bytes move. If
//! something is wrong with the bytes, it is asked again: without a lease, a miss or torn bytes mean nothing, so they
//! are not reported.
//!
//! Module `unleased` gets samples that the caller has not leased, and module `early` moves bytes before the index has
//! answered. In a sealed store objects arrive in a stage, and
//! decrypting them takes the place of the checksums (module `sealed`).

use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, Result};
use tensorhold_index::LeaseGrant;
use tokio::sync::mpsc;

use crate::io::read::Trouble;
use crate::memory::tensors::{TensorOut, Wanted};
use crate::ops::get_plan::GetPlan;
use crate::runtime::tasks::Caller;
use crate::store::lease::Lease;
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.get";

impl Inner {
    /// Gets under a lease, which is no look at its sample.
    pub(crate) async fn get(
        &self,
        lease: &Lease,
        wanted: Wanted,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Vec<TensorOut>> {
        let started = self.runtime.step_begins();
        let (reference, description) = (lease.grant().sample, lease.unseen_description());
        lease.set_unserved(false);
        let plan = tokio::select! {
            plan = self.plan_get(&reference, description, wanted, deadline) => plan?,
            () = caller.waits_end() => return Err(nobody_waits(caller)),
        };
        let arrived = self.arrive(lease, &plan, deadline).await;
        // The engine refused, and the deadline was not simply too short: if the sample is handed back for that, it does
        // not count as an attempt.
        let unserved = |error: &Error| error.kind() == ErrorKind::Unavailable && !deadline.passed(&*self.runtime.clock);
        lease.set_unserved(arrived.as_ref().err().is_some_and(unserved));
        let got = self.handed_out(plan, arrived).await;
        lease.step_ended(&self.runtime, "get", started, got.as_ref().err());
        got
    }

    /// The tensors that have arrived. If the get failed, memory that may hold plaintext is cleared.
    pub(crate) async fn handed_out(&self, plan: GetPlan<'_>, arrived: Result<()>) -> Result<Vec<TensorOut>> {
        if arrived.is_err() && plan.is_sealed() {
            self.clear(&plan).await;
        }
        arrived?;
        let tensors = plan.tensors();
        self.runtime.count.gets.one();
        self.runtime
            .count
            .bytes_got
            .add(tensors.iter().map(|tensor| tensor.spec.bytes()).sum());
        Ok(tensors)
    }

    /// Fetches objects and asks whether the lease holds.
    pub(crate) async fn arrive(&self, lease: &Lease, plan: &GetPlan<'_>, deadline: Deadline) -> Result<()> {
        let (moving, mut moved) = mpsc::channel(1);
        let fetch = self.io.fetch(plan.objects()?, moving, deadline);
        let renew = self.until_moved(std::slice::from_ref(lease), &mut moved, deadline);
        let ask = async || self.checks.ask(lease.session(), &lease.grant(), deadline).await;
        let (fetched, mut good) = if plan.is_checked() {
            let (fetched, (), good) = tokio::join!(fetch, renew, ask());
            (fetched, good?)
        } else {
            let (fetched, good) = tokio::join!(fetch, async {
                renew.await;
                ask().await
            });
            (fetched, good?)
        };
        if good && fetched.is_err() && plan.is_checked() {
            good = ask().await?;
        }
        if !good {
            self.runtime.count.fenced.one();
            return Err(self.reclaim.gone(&lease.grant().sample, no_longer_held(lease)));
        }
        let fetched = match fetched {
            // What was read ahead may have been torn on its way, while the engine's copy is good; the first get has taken
            // it out of the buffer.
            Err(Trouble::Corrupt(_)) if self.runtime.prefetch.was_used() => {
                let (moving, _moved) = mpsc::channel(1);
                self.io.fetch(plan.objects()?, moving, deadline).await
            }
            fetched => fetched,
        };
        let reference = lease.grant().sample;
        match fetched {
            Ok(()) => Ok(()),
            Err(Trouble::Missing(key)) => Err(self.reclaim.missed(&reference, lease.unseen_description(), &key)),
            Err(Trouble::Corrupt(error)) => {
                self.runtime.count.corrupt.one();
                Err(error.with("sample", &reference.sample))
            }
            Err(Trouble::Failed(error)) => Err(error.with("sample", &reference.sample)),
        }
    }

    /// Waits until all bytes have moved, and renews the leases whenever half of their time has passed.
    pub(crate) async fn until_moved(
        &self,
        leases: &[Lease],
        moved: &mut mpsc::Receiver<std::convert::Infallible>,
        deadline: Deadline,
    ) {
        let half = self.runtime.lease_time() / 2;
        while let Err(_elapsed) = tokio::time::timeout(half, moved.recv()).await {
            for renewed in self.renew(leases, deadline).await {
                if let Err(error) = renewed {
                    // Whether the lease still holds is asked at the end.
                    tracing::debug!(%error, "a lease was not renewed during a transfer");
                }
            }
        }
    }
}

/// The error of a get whose caller left while it waited for memory. No caller sees it.
pub(crate) fn nobody_waits(caller: &Caller) -> Error {
    caller.ended(OPERATION, "the caller left while the get waited for memory")
}

fn no_longer_held(lease: &Lease) -> Error {
    let LeaseGrant { sample, token, .. } = lease.grant();
    Error::new(
        ErrorKind::Fenced,
        OPERATION,
        "the lease no longer holds: the sample was retired or replaced, or the lease or its session ended; take it again",
    )
    .with("sample", &sample.sample)
    .with("generation", sample.generation)
    .with("token", token)
}

impl FeatureStore {
    /// Gets tensors of a sample that this process holds a lease on: exactly the committed bytes, or an error and no
    /// bytes.
    ///
    /// - `Fenced`: the lease does not hold any more.
    /// - `NotFound` with the fact `reason=lost`: the engine has lost the bytes, by the verdict of this process. In
    ///   another process the lease is `Fenced`.
    /// - `Corrupt`: the bytes that arrived are not the committed ones.
    /// - `Unavailable`: the engine or the index did not answer, or (fact `reason=missing`) the engine does not have the
    ///   bytes now. The lease is unchanged, so try again. A sample that is handed back after this error costs its group
    ///   no attempt.
    /// - `Denied`: the sample is sealed with a key that this store was not opened with.
    /// - `Unsupported`: this store has a key, and the sample is not sealed.
    pub async fn get(&self, lease: &Lease, wanted: Wanted, within: Duration) -> Result<Vec<TensorOut>> {
        lease.look();
        let lease = lease.clone();
        self.run_for(OPERATION, |inner, caller| async move {
            inner.get(&lease, wanted, &caller, inner.deadline(within)).await
        })
        .await
    }
}
