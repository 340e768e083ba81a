//! Getting a sample without a lease: one read of the index, and no write.
//!
//! ```text
//! live reference ─▶ bytes move ─▶ every byte is the committed one, or the sample is still live ─▶ tensors
//!                      │ missing, or different
//!                      ▼
//!                    take a read lease, and get under that lease: what is seen then is true
//!                      │ no longer live
//!                      ▼
//!                    the error of taking it
//! ```
//!
//! # Why that is enough
//! - Bytes with the committed checksum, or that decrypt under the sample's seal, are the committed bytes, even if
//!   another process removes the objects meanwhile. So they can be trusted without a lease.
//! - A sample with neither is looked up again after its bytes have come: objects are removed only once their sample is not
//!   live, so one that is still live was there, untouched, all the time.
//! - The sample was live when the live reference was made, and the get counts as made then. That is why the get
//!   consumes a [`LiveRef`]: a later get needs a later live reference.
//! - Nothing is held, so nothing has to be given back if the process dies, and no removal waits for it.
//!
//! It is not for consumers of a group, which must have leased what they work on.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, Generation, Result, SampleId};
use tensorhold_index::SampleRef;
use tokio::sync::mpsc;

use crate::io::read::Trouble;
use crate::memory::tensors::{TensorOut, Wanted};
use crate::ops::get::nobody_waits;
use crate::ops::get_plan::GetPlan;
use crate::record::described::DescribedRef;
use crate::record::description::Description;
use crate::runtime::tasks::Caller;
use crate::store::lease::Found;
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.get";

/// A live reference: a sample that was live a moment ago.
#[derive(Debug)]
pub struct LiveRef(Found);

impl LiveRef {
    /// Its incarnation.
    pub fn reference(&self) -> &SampleRef {
        &self.0.reference
    }

    /// The sample's description: its tensors and their specs.
    pub fn description(&self) -> &Arc<Description> {
        &self.0.description
    }

    /// A reference that carries this description.
    pub fn described(&self) -> DescribedRef {
        DescribedRef::from(&self.0)
    }
}

impl Inner {
    pub(crate) async fn get_unleased(
        &self,
        live: LiveRef,
        wanted: Wanted,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Vec<TensorOut>> {
        let started = self.runtime.step_begins();
        let (reference, description) = (live.reference(), live.description());
        let plan = tokio::select! {
            plan = self.plan_get(reference, description, wanted, deadline) => plan?,
            () = caller.waits_end() => return Err(nobody_waits(caller)),
        };
        let arrived = self.arrive_unleased(reference, &plan, caller, deadline).await;
        let got = self.handed_out(plan, arrived).await;
        let error = got.as_ref().err();
        self.runtime
            .step_ended("get", started, reference, description.nonce, error);
        got
    }

    async fn arrive_unleased(
        &self,
        reference: &SampleRef,
        plan: &GetPlan<'_>,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<()> {
        let (moving, _moved) = mpsc::channel(1);
        match self.io.fetch(plan.objects()?, moving, deadline).await {
            Ok(()) if plan.is_checked() || self.is_live(reference, deadline).await? => return Ok(()),
            // The memory is not used again: what became of the call is not known.
            Err(Trouble::Failed(error)) => return Err(error.with("sample", &reference.sample)),
            Ok(()) | Err(Trouble::Missing(_) | Trouble::Corrupt(_)) => {}
        }
        let lease = self.take_one(reference, caller, deadline).await;
        let lease = lease.map_err(|error| self.reclaim.gone(reference, error))?;
        // Dropping the lease releases it in the background.
        self.arrive(&lease, plan, deadline).await
    }

    /// Makes a live reference of what was found: to this generation, or to whichever is live.
    pub(crate) fn live(
        &self,
        sample: &SampleId,
        generation: Option<Generation>,
        found: Option<Found>,
    ) -> Result<LiveRef> {
        let error = |kind, message: &str| Error::new(kind, OPERATION, message).with("sample", sample);
        let found = found.ok_or_else(|| {
            let error = error(ErrorKind::NotFound, "there is no such sample, or not any more");
            let lost = self.reclaim.losses.last_lost(sample);
            match lost.filter(|lost| generation.is_none_or(|wanted| wanted == lost.generation)) {
                Some(lost) => self.reclaim.gone(&lost, error),
                None => error,
            }
        })?;
        let live = found.reference.generation;
        match generation {
            Some(wanted) if wanted != live => Err(error(
                ErrorKind::Fenced,
                "this generation of the sample is no longer the live one",
            )
            .with("generation", wanted)
            .with("live", live)),
            _ => Ok(LiveRef(found)),
        }
    }

    /// Whether exactly this incarnation is live now.
    async fn is_live(&self, reference: &SampleRef, deadline: Deadline) -> Result<bool> {
        let sample = std::slice::from_ref(&reference.sample);
        let live = self.runtime.index.look(sample, self.runtime.left(deadline)).await?;
        Ok(live.into_iter().flatten().any(|live| live.sample == *reference))
    }
}

impl FeatureStore {
    /// Makes a live reference to a sample: to this generation, or to whichever is live. `NotFound` if there is none,
    /// `Fenced` if another generation is live.
    pub async fn find_live(
        &self,
        sample: &SampleId,
        generation: Option<Generation>,
        within: Duration,
    ) -> Result<LiveRef> {
        let found = self.find(std::slice::from_ref(sample), within).await?.pop().flatten();
        self.inner().live(sample, generation, found)
    }

    /// Gets tensors of a live reference, without a lease: exactly the committed bytes, or an error and no bytes. Errors
    /// as of [`FeatureStore::get`], and those of [`FeatureStore::lease_shared`] if the sample is gone by now.
    pub async fn get_unleased(&self, live: LiveRef, wanted: Wanted, within: Duration) -> Result<Vec<TensorOut>> {
        self.run_for(OPERATION, |inner, caller| async move {
            inner.get_unleased(live, wanted, &caller, inner.deadline(within)).await
        })
        .await
    }
}
