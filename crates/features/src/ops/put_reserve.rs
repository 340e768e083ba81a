//! Reserving the samples of a put: under their own names, or with reservations that were made ahead (module `ahead`). What
//! becomes of a reservation is in module `put`.

use std::collections::HashSet;
use std::sync::Arc;

use tensorhold_core::{Deadline, ErrorKind, Generation, ObjectKey, Result, Retry, SampleId};
use tensorhold_custody::Version;
use tensorhold_index::{Becomes, Reserve, SampleRef, Session};
use tokio_util::sync::CancellationToken;

use crate::ops::ahead::ReservedAhead;
use crate::ops::put::{OPERATION, PutTurn, Ready, Results, Stored, unwanted};
use crate::ops::put_plan::PutPlan;
use crate::record::plan::{OBJECTS_AHEAD, SampleObjects};
use crate::runtime::inflight_puts::Begun;
use crate::runtime::tasks::Caller;
use crate::store::Inner;

/// A sample that is reserved, under its own name or ahead.
pub(super) struct Reserved {
    /// Its position in the batch.
    pub(super) at: usize,
    /// Its position among the samples that were put together.
    pub(super) order: usize,
    pub(super) prepared: PutPlan,
    /// The reservation.
    pub(super) reference: SampleRef,
    pub(super) keys: Vec<ObjectKey>,
    pub(super) begun: Arc<Begun>,
}

impl Reserved {
    /// What a reservation that was made ahead becomes.
    pub(super) fn becomes(&self) -> Option<Becomes> {
        self.prepared.reserved_as.as_ref().map(|_| Becomes {
            sample: self.prepared.sample.clone(),
            bytes: self.prepared.bytes,
        })
    }

    /// The sample's incarnation, once it is committed at this version.
    pub(super) fn incarnation(&self, version: Version) -> SampleRef {
        match (&self.prepared.reserved_as, Generation::new(version.0)) {
            (Some(_), Some(generation)) => SampleRef {
                sample: self.prepared.sample.clone(),
                generation,
            },
            _ => self.reference.clone(),
        }
    }
}

impl Inner {
    /// Reserves the samples that are prepared and not given up. If one is given up meanwhile, the others proceed
    /// without it.
    pub(super) async fn reserve(
        &self,
        mut session: Arc<Session>,
        samples: Vec<Ready>,
        turn: &PutTurn,
        caller: &Caller,
        results: &mut Results,
        deadline: Deadline,
    ) -> (Arc<Session>, Vec<Reserved>) {
        let mut reserved = Vec::with_capacity(samples.len());
        let mut open: Vec<(usize, Ready)> = samples.into_iter().enumerate().collect();
        while !open.is_empty() {
            let (wanted, given_up): (Vec<_>, Vec<_>) = open
                .into_iter()
                .partition(|(_, ready)| caller.may_wait() && ready.begun.counts().is_ok());
            results.extend(
                given_up
                    .into_iter()
                    .map(|(_, ready)| (ready.at, Err(unwanted(&ready.begun, caller)))),
            );
            let (interrupted, generations) = self
                .reserve_unless_given_up(&mut session, &wanted, turn, caller, deadline)
                .await;
            open = Vec::new();
            for ((order, ready), generation) in wanted.into_iter().zip(generations) {
                let generation = match generation {
                    Ok(generation) => generation,
                    // Another sample of the batch was given up, and that ended the wait of all.
                    Err(error)
                        if interrupted
                            && matches!(error.kind(), ErrorKind::Capacity | ErrorKind::Unavailable)
                            && error.retry() == Retry::Safe =>
                    {
                        open.push((order, ready));
                        continue;
                    }
                    Err(error) => {
                        results.push((ready.at, Err(error)));
                        continue;
                    }
                };
                let reference = SampleRef {
                    sample: ready.prepared.sample.clone(),
                    generation,
                };
                let kept = self.with_keys(&session, order, ready, reference);
                kept.map_or_else(|failed| results.push(failed), |kept| reserved.push(kept));
            }
        }
        (session, reserved)
    }

    /// Binds samples to reservations that were made ahead, one each.
    pub(super) fn bind(
        &self,
        session: &Arc<Session>,
        samples: Vec<Ready>,
        taken: Vec<ReservedAhead>,
        results: &mut Results,
    ) -> Vec<Reserved> {
        let mut reserved = Vec::with_capacity(samples.len());
        for (order, (mut ready, taken)) in samples.into_iter().zip(taken).enumerate() {
            ready.prepared.take(&taken);
            let kept = self.with_keys(session, order, ready, taken.reference);
            kept.map_or_else(|failed| results.push(failed), |kept| reserved.push(kept));
        }
        reserved
    }

    /// A reservation made ahead for each of these samples, if all of them can be put under one (module `ahead`), and there
    /// are enough.
    pub(super) fn take_ahead(&self, session: &Arc<Session>, samples: &[Ready]) -> Vec<ReservedAhead> {
        let names: HashSet<&SampleId> = samples.iter().map(|ready| &ready.prepared.sample).collect();
        let fits = |ready: &Ready| {
            ready.prepared.objects().count() as u64 <= OBJECTS_AHEAD && !self.inflight_puts.has_earlier(&ready.begun)
        };
        let can_be = self.io.seals.is_none() && !session.needs_quota();
        if can_be && names.len() == samples.len() && samples.iter().all(fits) {
            return self.reserved_ahead.take(session, samples.len());
        }
        Vec::new()
    }

    /// A reserved sample with the keys of its objects, or its result if it has none.
    fn with_keys(
        &self,
        session: &Arc<Session>,
        order: usize,
        ready: Ready,
        reference: SampleRef,
    ) -> std::result::Result<Reserved, (usize, Result<Stored>)> {
        let Ready { at, prepared, begun } = ready;
        let keys = self.keys_of(&reference, &prepared);
        let reservation = Reserved {
            at,
            order,
            prepared,
            reference,
            keys: keys.clone().unwrap_or_default(),
            begun,
        };
        match keys {
            Ok(_) => Ok(reservation),
            Err(error) => Err((at, Err(self.undo(session, reservation, error)))),
        }
    }

    /// Reserves; once more in another session if the current one turns out to have ended. Waits end when one of the
    /// puts is given up, the caller has left, or the store is closing. Returns whether they were interrupted that way.
    async fn reserve_unless_given_up(
        &self,
        session: &mut Arc<Session>,
        wanted: &[(usize, Ready)],
        turn: &PutTurn,
        caller: &Caller,
        deadline: Deadline,
    ) -> (bool, Vec<Result<Generation>>) {
        let puts: Vec<Arc<Begun>> = wanted.iter().map(|(_, ready)| Arc::clone(&ready.begun)).collect();
        let wishes: Vec<Reserve> = wanted
            .iter()
            .map(|(_, Ready { prepared, .. })| Reserve {
                sample: prepared.sample.clone(),
                nonce: prepared.nonce,
                bytes: prepared.bytes,
                plan: prepared.plan.clone(),
                claims: Vec::new(),
            })
            .collect();
        let interrupted = CancellationToken::new();
        let act = async {
            let left = self.runtime.left(deadline);
            // A sample is reserved for one put at a time. If the time is up, the index says what became of an earlier
            // put.
            tokio::select! {
                _ = tokio::time::timeout(left, self.inflight_puts.earlier_have_ended(&puts)) => {}
                () = interrupted.cancelled() => {}
            }
            let mut generations = self.reserve_in(session, &wishes, &interrupted, deadline).await;
            let ended = |result: &Result<Generation>| {
                let refused = result
                    .as_ref()
                    .err()
                    .map(|error| self.runtime.sessions.refused(session, error));
                refused.unwrap_or(false)
            };
            if !generations.is_empty() && generations.iter().all(ended) {
                match self.runtime.sessions.current(OPERATION, deadline).await {
                    Ok(another) => *session = another,
                    Err(error) => return wishes.iter().map(|_| Err(error.clone())).collect(),
                }
                generations = self.reserve_in(session, &wishes, &interrupted, deadline).await;
            }
            generations
        };
        let interrupt = async {
            tokio::select! {
                () = caller.waits_end() => {}
                () = turn.one_is_given_up(&puts) => {}
            }
            interrupted.cancel();
            std::future::pending().await
        };
        // The reservation is never dropped half-way: it is told to end.
        let generations = tokio::select! {
            generations = act => generations,
            never = interrupt => never,
        };
        (interrupted.is_cancelled(), generations)
    }

    async fn reserve_in(
        &self,
        session: &Session,
        wishes: &[Reserve],
        interrupted: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let left = self.runtime.left(deadline);
        self.runtime
            .index
            .reserve_unless(session, wishes, interrupted, left)
            .await
    }

    fn keys_of(&self, reference: &SampleRef, ready: &PutPlan) -> Result<Vec<ObjectKey>> {
        let place = SampleObjects {
            store: &self.runtime.config.store,
            sample: reference,
        };
        if ready.reserved_as.is_some() {
            return place.keys_ahead(ready.nonce, 0..ready.objects().count() as u64);
        }
        let mut keys = Vec::new();
        for (spec, chunks) in &ready.tensors {
            keys.extend(place.keys(ready.nonce, spec.name(), chunks.len() as u64)?);
        }
        Ok(keys)
    }
}
