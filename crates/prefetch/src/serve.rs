//! Gets: from the buffer, after a wait for what is on its way, or from the engine.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorhold_core::{Deadline, Result};
use tensorhold_engine::batch::{check_count, check_time, check_transfers};
use tensorhold_engine::{GetOutcome, Span, Transfer};

use crate::workers::Work;

impl Work {
    /// Copies what was read ahead into its readers' memory; `outcomes` has a place for each transfer.
    fn serve(&self, batch: &[Transfer], outcomes: &mut [Option<GetOutcome>]) -> Result<()> {
        let Some(engine) = self.buffer.engine() else {
            return Ok(());
        };
        check_transfers("engine.get", batch, engine)?;
        let (mut served, mut bytes) = (0, 0);
        for (transfer, outcome) in batch.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_none()) {
            let Some(span) = self.buffer.take(&transfer.key, transfer.bytes()) else {
                continue;
            };
            copy(&span, &transfer.parts)?;
            *outcome = Some(GetOutcome::Loaded);
            served += 1;
            bytes += transfer.bytes();
        }
        self.sources.local(served, bytes);
        Ok(())
    }

    pub(crate) fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        const OPERATION: &str = "engine.get";
        if !self.used.load(Ordering::Acquire) || batch.is_empty() {
            return self.get_below(batch, within);
        }
        check_time(OPERATION, within)?;
        check_count(OPERATION, batch.len(), &self.engine.capabilities())?;
        let deadline = Deadline::after(&*self.clock, within);
        let mut outcomes: Vec<Option<GetOutcome>> = batch.iter().map(|_| None).collect();
        self.serve(batch, &mut outcomes)?;
        if !self.config.wait_for_prefetch.is_zero() && outcomes.iter().any(Option::is_none) {
            let open = batch.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
            let now = self.clock.now();
            let ticket = self
                .shared
                .with(|throttle| throttle.join(open.map(|(transfer, _)| &transfer.key), now));
            if let Some(ticket) = ticket {
                // Time must be left for the engine.
                let bound = (deadline.remaining(&*self.clock) / 2).min(self.config.wait_for_prefetch);
                self.shared
                    .wait(ticket, &*self.clock, Deadline::after(&*self.clock, bound));
                self.shared.with(|throttle| throttle.leave(ticket));
                self.serve(batch, &mut outcomes)?;
            }
        }
        if outcomes.iter().all(Option::is_none) {
            return self.get_below(batch, deadline.remaining(&*self.clock));
        }
        let rest: Vec<Transfer> = batch
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| outcome.is_none())
            .map(|(transfer, _)| transfer.clone())
            .collect();
        if !rest.is_empty() {
            let got = self.get_below(&rest, deadline.remaining(&*self.clock));
            // What has been served is served.
            let got = got.unwrap_or_else(|error| rest.iter().map(|_| GetOutcome::Failed(error.clone())).collect());
            for (place, outcome) in outcomes.iter_mut().filter(|outcome| outcome.is_none()).zip(got) {
                *place = Some(outcome);
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// A get from the engine, with its sources counted.
    fn get_below(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let outcomes = self.engine.get(batch, within)?;
        let loaded = batch
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| matches!(outcome, GetOutcome::Loaded));
        let mut unknown = Vec::new();
        if self.used.load(Ordering::Acquire) {
            let now = self.clock.now();
            self.shared.with(|throttle| {
                for (transfer, _) in loaded.clone() {
                    throttle.taken(&transfer.key, now);
                }
            });
        }
        for (transfer, _) in loaded {
            match self.prober.known(&transfer.key) {
                None if self.config.count_sources => unknown.push(transfer.key.clone()),
                seen => self.sources.seen(seen),
            }
        }
        if !unknown.is_empty() {
            self.sources.ask(unknown);
        }
        Ok(outcomes)
    }
}

/// Copies an object into the buffers of its reader, which have as many bytes.
fn copy(from: &Span, into: &[Span]) -> Result<()> {
    let mut at = 0;
    for part in into {
        part.copy_from(0, from, at, part.len())?;
        at += part.len();
    }
    Ok(())
}
