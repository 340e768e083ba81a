//! The route by the engine's own promotion: it is asked for, waited for by looking, and kept by a lease.

use std::time::Duration;

use tensorhold_core::{Deadline, ObjectKey, Result};
use tensorhold_engine::{Presence, PromoteOutcome};

use crate::flaw::Flaw;
use crate::throttle::{Attempt, Outcome};
use crate::workers::{Begun, Work};

/// How fresh the figures of DRAM in use are that decide about promotions.
const USAGE_FOR: Duration = Duration::from_millis(250);

impl Work {
    pub(crate) fn promote(&self, begun: &mut Begun<'_>) {
        let deadline = Deadline::after(&*self.clock, self.config.within);
        match self.is_dram_short(deadline) {
            Ok(false) => {}
            Ok(true) => {
                begun.end_all(&Outcome::Refused);
                self.press();
                return;
            }
            Err(error) => {
                begun.end_all(&self.failure(error, deadline));
                return;
            }
        }
        let attempts: Vec<Attempt> = begun.ids().iter().map(|id| begun.open[id].clone()).collect();
        let keys: Vec<ObjectKey> = attempts.iter().map(|attempt| attempt.key.clone()).collect();
        let outcomes = match self.engine.promote(&keys, deadline.remaining(&*self.clock)) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                begun.end_all(&self.failure(error, deadline));
                return;
            }
        };
        let now = self.clock.now();
        let until = now.after(deadline.remaining(&*self.clock));
        for (attempt, outcome) in attempts.into_iter().zip(outcomes) {
            match outcome {
                PromoteOutcome::Asked => {
                    begun.open.remove(&attempt.id);
                    self.shared.with(|throttle| throttle.promoting(attempt.id, until, now));
                }
                PromoteOutcome::InDram => begun.end(attempt.id, Outcome::Resident),
                PromoteOutcome::Absent => begun.end(attempt.id, Outcome::Absent),
                PromoteOutcome::Failed(error) => begun.end(attempt.id, self.failure(error, deadline)),
            }
        }
    }

    /// Whether the cluster's DRAM is too full to promote anything.
    fn is_dram_short(&self, deadline: Deadline) -> Result<bool> {
        let mut usage = self.usage.lock();
        let now = self.clock.now();
        let fresh = usage.filter(|(at, _)| now < at.after(USAGE_FOR));
        let (_, figures) = match fresh {
            Some(fresh) => fresh,
            None => *usage.insert((now, self.engine.usage(deadline.remaining(&*self.clock))?)),
        };
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
        let (used, capacity) = (figures.dram_used as f64, figures.dram_capacity as f64);
        Ok(used >= capacity * self.config.dram_below)
    }

    /// Looks for all objects whose promotion is in flight, in one request.
    pub(crate) fn look(&self, attempts: Vec<Attempt>, deadline: Deadline) {
        if self.has(Flaw::LookForEach) {
            for attempt in attempts {
                self.look_at_once(vec![attempt], deadline);
            }
        } else {
            self.look_at_once(attempts, deadline);
        }
    }

    fn look_at_once(&self, attempts: Vec<Attempt>, deadline: Deadline) {
        let keys: Vec<ObjectKey> = attempts.iter().map(|attempt| attempt.key.clone()).collect();
        let found = match self.engine.probe(&keys, deadline.remaining(&*self.clock)) {
            Ok(found) => found,
            Err(error) => {
                // They are looked for again, until their time is up.
                tracing::debug!(%error, "the progress of promotions is not known");
                return;
            }
        };
        let mut arrived = Vec::new();
        for (attempt, presence) in attempts.into_iter().zip(found) {
            match presence {
                Presence::Present { dram: 1.., .. } => arrived.push(attempt),
                Presence::Present { .. } | Presence::Unfinished => {}
                Presence::Absent => {
                    let now = self.clock.now();
                    self.shared
                        .with(|throttle| throttle.finish(attempt.id, Outcome::Absent, now));
                }
            }
        }
        if arrived.is_empty() {
            return;
        }
        // The engine grants no lease with a promotion: without one, the object may be evicted before it is read.
        let keys: Vec<ObjectKey> = arrived.iter().map(|attempt| attempt.key.clone()).collect();
        let leased = if self.has(Flaw::NoLease) {
            Ok(arrived.iter().map(|_| PromoteOutcome::InDram).collect())
        } else {
            self.engine.promote(&keys, deadline.remaining(&*self.clock))
        };
        let leased = leased.unwrap_or_else(|error| {
            let failed = |_| PromoteOutcome::Failed(error.clone());
            keys.iter().map(failed).collect()
        });
        // Where a probe saw them before, gets would be counted as served from SSD.
        self.prober.forget(keys.iter());
        let now = self.clock.now();
        for (attempt, outcome) in arrived.into_iter().zip(leased) {
            let outcome = match outcome {
                PromoteOutcome::InDram => Outcome::Resident,
                PromoteOutcome::Absent => Outcome::Absent,
                PromoteOutcome::Failed(error) => Outcome::Failed(error),
                // Evicted again meanwhile; it is on its way once more.
                PromoteOutcome::Asked => continue,
            };
            self.shared.with(|throttle| throttle.finish(attempt.id, outcome, now));
        }
    }
}
