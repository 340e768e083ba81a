//! The engine, with hooks on what the proofs watch.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ObjectKey, Result};
use tensorhold_engine::{
    Capabilities, Engine, GetOutcome, HostMemory, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome, Region,
    Registrations, RemoveOutcome, Transfer, Usage,
};

use crate::doom::Point;
use crate::hooks::Hooks;

#[derive(Debug)]
pub(crate) struct HookedEngine {
    pub(crate) inner: Arc<dyn Engine>,
    pub(crate) hooks: Arc<Hooks>,
}

impl Engine for HookedEngine {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.inner.register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.inner.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        self.hooks
            .writing(batch.iter().map(|transfer| transfer.key.clone()).collect());
        let call = self.hooks.call(Point::MidTransfer);
        let outcomes = self.inner.put(batch, options, within);
        if let Some(call) = call {
            call.over();
        }
        outcomes
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let call = self.hooks.call(Point::MidGet);
        let outcomes = self.inner.get(batch, within);
        if let Some(call) = call {
            call.over();
        }
        outcomes
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        let outcomes = self.inner.remove(keys, within);
        if let Ok(outcomes) = &outcomes {
            let gone = |outcome: &RemoveOutcome| matches!(outcome, RemoveOutcome::Removed | RemoveOutcome::Absent);
            let pairs = keys.iter().zip(outcomes);
            let gone: Vec<ObjectKey> = pairs.filter(|(_, o)| gone(o)).map(|(key, _)| key.clone()).collect();
            self.hooks.removed(&gone);
        }
        outcomes
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        self.inner.probe(keys, within)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.inner.list(prefix, after, limit, within)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.inner.promote(keys, within)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.inner.usage(within)
    }
}
