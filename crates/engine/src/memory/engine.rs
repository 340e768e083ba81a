//! A client of a memory cluster: the [`Engine`] over the sans-IO state.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Error, ObjectKey, Result, Retry};

use super::calls::Found;
use super::cluster::MemoryCluster;
use super::registry::Registry;
use super::state::State;
use crate::Engine;
use crate::batch::{check_count, check_limit, check_options, check_time, check_transfers};
use crate::region::{HostMemory, Region};
use crate::types::{
    Capabilities, GetOutcome, Holder, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome, Registrations,
    RelocateOutcome, RemoveOutcome, Transfer, Usage,
};

/// A client of a [`MemoryCluster`]. Made by [`MemoryCluster::connect`].
#[derive(Debug)]
pub struct MemoryEngine {
    cluster: Arc<MemoryCluster>,
    registry: Arc<Registry>,
    capabilities: Capabilities,
}

impl MemoryEngine {
    pub(super) fn new(cluster: Arc<MemoryCluster>, capabilities: Capabilities) -> Self {
        Self {
            cluster,
            registry: Registry::new(),
            capabilities,
        }
    }

    /// The cluster that it is a client of.
    pub fn cluster(&self) -> &Arc<MemoryCluster> {
        &self.cluster
    }

    /// One outcome per item from the state, or the same failure for all items if there is no master.
    fn each<I, O>(
        &self,
        operation: &'static str,
        items: impl IntoIterator<Item = I>,
        failed: impl Fn(Error) -> O,
        mut act: impl FnMut(&mut State, I) -> O,
    ) -> Vec<O> {
        self.cluster.with(|state| {
            let items = items.into_iter();
            if state.master_up {
                items.map(|item| act(state, item)).collect()
            } else {
                items.map(|_| failed(master_gone(operation))).collect()
            }
        })
    }

    /// Like `each`, for calls that report a failure as the error of the whole call.
    fn ask<T>(&self, operation: &'static str, answer: impl FnOnce(&mut State) -> T) -> Result<T> {
        self.cluster.with(|state| {
            if state.master_up {
                Ok(answer(state))
            } else {
                Err(master_gone(operation))
            }
        })
    }
}

fn master_gone(operation: &'static str) -> Error {
    Error::unavailable(
        operation,
        "the engine's master does not answer; try again when it is back",
    )
}

/// To a producer a dead master is a lost reply: the outcome is ambiguous.
fn may_have_happened(error: Error) -> Error {
    error.with_retry(Retry::Ambiguous)
}

fn read_all(transfer: &Transfer) -> Arc<[u8]> {
    match transfer.parts.as_slice() {
        [only] => only.to_vec().into(),
        parts => parts.iter().flat_map(crate::Span::to_vec).collect(),
    }
}

fn write_all(transfer: &Transfer, mut bytes: &[u8]) -> GetOutcome {
    let stored = bytes.len() as u64;
    if transfer.bytes() != stored {
        return GetOutcome::WrongLength { stored };
    }
    for part in &transfer.parts {
        let (head, tail) = bytes.split_at(part.len().min(bytes.len()));
        if let Err(error) = part.write(0, head) {
            return GetOutcome::Failed(error);
        }
        bytes = tail;
    }
    GetOutcome::Loaded
}

impl Engine for MemoryEngine {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        check_time("engine.register", within)?;
        self.registry.register(memory)
    }

    fn registrations(&self) -> Registrations {
        self.registry.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        const PUT: &str = "engine.put";
        check_time(PUT, within)?;
        check_count(PUT, batch.len(), &self.capabilities)?;
        check_transfers(PUT, batch, self.registry.id())?;
        check_options(PUT, options)?;
        // Read before the lock is taken, so that large objects do not hold up other clients.
        let objects: Vec<_> = batch.iter().map(|t| (&t.key, read_all(t))).collect();
        Ok(self.each(
            PUT,
            objects,
            |error| PutOutcome::Failed(may_have_happened(error)),
            |state, (key, bytes)| state.put(key, bytes, options),
        ))
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        const GET: &str = "engine.get";
        check_time(GET, within)?;
        check_count(GET, batch.len(), &self.capabilities)?;
        check_transfers(GET, batch, self.registry.id())?;
        let found = self.each(GET, batch, Err, |state, transfer| Ok(state.get(&transfer.key)));
        let outcomes = found.into_iter().zip(batch).map(|(found, transfer)| match found {
            Ok(Found::Bytes(bytes)) => write_all(transfer, &bytes),
            Ok(Found::Nothing) => GetOutcome::Miss,
            Ok(Found::Unfinished) => GetOutcome::Unfinished,
            Ok(Found::HolderGone(error)) | Err(error) => GetOutcome::Failed(error.with("key", &transfer.key)),
        });
        Ok(outcomes.collect())
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        const REMOVE: &str = "engine.remove";
        check_time(REMOVE, within)?;
        check_count(REMOVE, keys.len(), &self.capabilities)?;
        let failed = |error| RemoveOutcome::Failed(may_have_happened(error));
        Ok(self.each(REMOVE, keys, failed, |state, key| state.remove(key)))
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        const PROBE: &str = "engine.probe";
        check_time(PROBE, within)?;
        check_count(PROBE, keys.len(), &self.capabilities)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.ask(PROBE, |state| keys.iter().map(|key| state.probe(key)).collect())
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        const LIST: &str = "engine.list";
        check_time(LIST, within)?;
        check_limit(LIST, limit)?;
        self.ask(LIST, |state| state.list(prefix, after, limit))
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        const OPERATION: &str = "engine.raise";
        check_time(OPERATION, within)?;
        check_count(OPERATION, keys.len(), &self.capabilities)?;
        Ok(self.each(OPERATION, keys, PromoteOutcome::Failed, |state, key| {
            state.request_promotion(key)
        }))
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        check_time("engine.usage", within)?;
        self.ask("engine.usage", |state| state.usage())
    }

    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        check_time("engine.holders", within)?;
        self.ask("engine.holders", |state| state.holders())
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        const OPERATION: &str = "engine.relocate";
        check_time(OPERATION, within)?;
        check_count(OPERATION, keys.len(), &self.capabilities)?;
        Ok(self.each(OPERATION, keys, RelocateOutcome::Failed, |state, key| {
            state.relocate(key, from, to)
        }))
    }
}
