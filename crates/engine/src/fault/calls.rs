//! The [`Engine`] implementation of the wrapper: which calls are valid, and how a part of a batch is passed on.

use std::time::Duration;

use tensorhold_core::{ObjectKey, Result};

use super::engine::FaultEngine;
use super::log::Operation;
use super::plan::Place;
use crate::Engine;
use crate::batch::check_options;
use crate::region::{HostMemory, Region};
use crate::types::{
    Capabilities, GetOutcome, Holder, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome, Registrations,
    RelocateOutcome, RemoveOutcome, Transfer, Usage,
};

fn pick<T: Clone>(batch: &[T], items: &[usize]) -> Vec<T> {
    items.iter().filter_map(|item| batch.get(*item).cloned()).collect()
}

fn keys_of(batch: &[Transfer]) -> Vec<&ObjectKey> {
    batch.iter().map(|transfer| &transfer.key).collect()
}

impl<E: Engine + ?Sized> Engine for FaultEngine<E> {
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.inner().register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.inner().registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        let lawful = self.lawful_transfers(batch) && check_options("engine.put", options).is_ok();
        let Some(place) = self.begin(Operation::Put, lawful, within) else {
            return self.inner().put(batch, options, within);
        };
        self.batch(place, &keys_of(batch), within, PutOutcome::Failed, |items, within| {
            self.inner().put(&pick(batch, items), options, within)
        })
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let Some(place) = self.begin(Operation::Get, self.lawful_transfers(batch), within) else {
            return self.inner().get(batch, within);
        };
        let outcomes = self.batch(place, &keys_of(batch), within, GetOutcome::Failed, |items, within| {
            self.inner().get(&pick(batch, items), within)
        })?;
        let damaged = outcomes.into_iter().zip(batch).enumerate();
        let damaged = damaged.map(|(item, (outcome, transfer))| {
            let place = Place {
                item: Some(item),
                ..place
            };
            self.damage(place, transfer, outcome)
        });
        Ok(damaged.collect())
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        let Some(place) = self.begin(Operation::Remove, self.lawful(keys.len()), within) else {
            return self.inner().remove(keys, within);
        };
        let names: Vec<_> = keys.iter().collect();
        self.batch(place, &names, within, RemoveOutcome::Failed, |items, within| {
            self.inner().remove(&pick(keys, items), within)
        })
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        match self.begin(Operation::Probe, self.lawful(keys.len()), within) {
            Some(place) => self.whole(place, within, |within| self.inner().probe(keys, within)),
            None => self.inner().probe(keys, within),
        }
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        match self.begin(Operation::List, limit > 0, within) {
            Some(place) => self.whole(place, within, |within| self.inner().list(prefix, after, limit, within)),
            None => self.inner().list(prefix, after, limit, within),
        }
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        let Some(place) = self.begin(Operation::Promote, self.lawful(keys.len()), within) else {
            return self.inner().promote(keys, within);
        };
        let names: Vec<_> = keys.iter().collect();
        self.batch(place, &names, within, PromoteOutcome::Failed, |items, within| {
            self.inner().promote(&pick(keys, items), within)
        })
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        match self.begin(Operation::Usage, true, within) {
            Some(place) => self.whole(place, within, |within| self.inner().usage(within)),
            None => self.inner().usage(within),
        }
    }

    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        self.inner().holders(within)
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        self.inner().relocate(keys, from, to, within)
    }
}
