//! Reserving samples, with or without a quota.

use std::collections::HashSet;

use holdfast_core::{BatchResults, Deadline, Error, ErrorKind, Generation, Result, Retry};
use holdfast_custody::{Reserved, Version};
use tokio_util::sync::CancellationToken;

use crate::index::TxnIndex;
use crate::quota::{Debit, LocalOutcome, QueuePosition, bytes_in, must_wait};
use crate::record::grants::{Grant, Holding};
use crate::record::refusal::{being_written, check_claims, generation_of, owned, owner};
use crate::record::types::Reserve;
use crate::store::{Condition, Write};
use crate::txn::batch::{Intent, Loaded, QuotaChange};
use crate::txn::decision::{Decision, set_version};
use crate::txn::session::Session;

const RESERVE: &str = "index.reserve";

/// How many of the next items are reserved together. All of them must be had at once, so a good part of the budget would
/// wait for everybody else to be done; and whoever serves them needs room for them in a transaction.
fn how_many_together(items: &[Reserve], budget: u64) -> usize {
    const MOST: usize = 48;
    const MOST_TEXT: usize = 256 * 1024;
    let (mut bytes, mut text) = (0_u64, 0);
    let mut samples = HashSet::new();
    let mut together = 0;
    for item in items.iter().take(MOST) {
        bytes = bytes.saturating_add(item.bytes);
        text += item.plan.len();
        if !samples.insert(&item.sample) || bytes > budget / 4 || text > MOST_TEXT {
            break;
        }
        together += 1;
    }
    together.max(1)
}

impl TxnIndex {
    pub(crate) async fn do_reserve(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        match session.budget {
            Some(budget) => {
                self.reserve_with_credits(session, items, budget, cancelled, deadline)
                    .await
            }
            None => {
                // No other producer's reservation is expected, so the first attempt reads nothing.
                self.reserve_now(session, items, None, Some(Loaded::default()), deadline)
                    .await
            }
        }
    }

    /// Reserves, and pays for it in the same transaction if there is a quota. The first attempt uses `seen`, if given,
    /// instead of reading.
    pub(crate) async fn reserve_now(
        &self,
        session: &Session,
        items: &[Reserve],
        credits: Option<&dyn QuotaChange<Reserve>>,
        seen: Option<Loaded>,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        const OPERATION: &str = "index.reserve";
        let keys = |item: &Reserve| self.core.layout().in_its_way(&item.sample, &item.claims).collect();
        let decide = |item: &Reserve, loaded: &Loaded| {
            check_claims(item)?;
            // Decoded, because a reservation that cannot be decoded would block the sample's name for ever: it is
            // quarantined.
            if loaded
                .record::<Reserved>(&self.core.layout().pending(&item.sample))?
                .is_some()
            {
                return Err(being_written(&item.sample));
            }
            for key in &item.claims {
                if let Some(claim) = loaded.entry(&self.core.layout().claim(key)) {
                    return Err(owned(&item.sample, key, &owner(claim)?));
                }
            }
            let until = loaded.tick.after(self.core.config().reserve_ticks);
            let paid = if credits.is_some() { item.bytes } else { 0 };
            let record = Reserved::new(session.id(), item.nonce, item.bytes, until)
                .with_paid(paid)
                .with_plan(&item.plan)
                .with_claims(&item.claims);
            let in_its_way = self.core.layout().in_its_way(&item.sample, &item.claims);
            let conditions = in_its_way.map(Condition::Absent).collect();
            let mut writes: Vec<Write> = self.core.layout().put_claims(&item.sample, &item.claims).collect();
            // Put last, because `remembering` remembers the last write.
            writes.push(self.core.layout().put_reserved(&item.sample, &record)?);
            let given = Grant {
                to: session.id(),
                until,
                what: Holding {
                    sample: item.sample.clone(),
                    generation: None,
                },
            };
            let decision = Decision::new(conditions, writes, Version::default());
            Ok(decision.settling(set_version).giving(given).remembering())
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: true,
            credits,
        };
        let results = self.core.batch(session, items, intent, seen, deadline).await;
        results
            .into_iter()
            .map(|result| result.and_then(generation_of))
            .collect()
    }

    /// Reserves with credits.
    pub(crate) async fn reserve_with_credits(
        &self,
        session: &Session,
        items: &[Reserve],
        budget: u64,
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let mut results = Vec::with_capacity(items.len());
        let mut rest = items;
        while let Some(first) = rest.first() {
            let (now, later) = rest.split_at(how_many_together(rest, budget));
            rest = later;
            if first.bytes > budget {
                let message = "this sample is larger than the store's whole budget";
                let error = Error::new(ErrorKind::Capacity, RESERVE, message).with("sample", &first.sample);
                results.push(Err(error.with_retry(Retry::Never)));
                continue;
            }
            results.extend(match self.quota.wait_locally(session, now, cancelled, deadline).await {
                Ok(LocalOutcome::Reserved(generation)) => now.iter().map(|_| Ok(generation)).collect(),
                Ok(LocalOutcome::Not(_in_line)) => self.take_a_turn(session, now, cancelled, deadline).await,
                Ok(LocalOutcome::Unclear(_in_line)) => {
                    let reserved = self.take_a_turn(session, now, cancelled, deadline).await;
                    self.quota.or_served_meanwhile(session, now, reserved).await
                }
                Err(error) => now.iter().map(|_| Err(error.clone())).collect(),
            });
        }
        results
    }

    /// Those of one session take turns, in the order in which they came: they share a purse and a place in line.
    async fn take_a_turn(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let turn = tokio::select! {
            biased;
            () = cancelled.cancelled() => None,
            turn = tokio::time::timeout(deadline.remaining(self.core.clock()), session.turn.lock()) => turn.ok(),
        };
        let Some(mut place) = turn else {
            let message = "others of this process waited for credits until the deadline";
            let error = Error::new(ErrorKind::Capacity, RESERVE, message);
            return items.iter().map(|_| Err(error.clone())).collect();
        };
        self.pay_and_reserve(session, &mut place, items, cancelled, deadline)
            .await
    }

    /// Reserves items that belong together, from what is there or after a wait.
    async fn pay_and_reserve(
        &self,
        session: &Session,
        place: &mut QueuePosition,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let mut results = BatchResults::new(items.len());
        loop {
            let open = results.open();
            let wanted: Vec<Reserve> = open.iter().map(|at| items[*at].clone()).collect();
            if wanted.is_empty() {
                break;
            }
            let need = wanted.iter().fold(0_u64, |need, item| need.saturating_add(item.bytes));
            let purse = session.balance.remembered();
            let has_enough = bytes_in(purse.as_ref()).is_ok_and(|bytes| bytes >= need);
            if has_enough || !place.contended {
                let reach = if has_enough {
                    None
                } else {
                    self.quota.reach(deadline).await
                };
                if !has_enough && reach.is_none() {
                    place.contended = true;
                    continue;
                }
                let spending = Debit::new(&self.quota, session);
                let seen = has_enough.then(Loaded::default);
                let reserved = self
                    .reserve_now(session, &wanted, Some(&spending), seen, deadline)
                    .await;
                for (at, result) in open.into_iter().zip(reserved) {
                    if !result.as_ref().is_err_and(must_wait) {
                        results.set(at, result);
                    }
                }
                drop(reach);
                place.contended = !results.open().is_empty();
                continue;
            }
            match self
                .quota
                .wait_and_reserve(session, place, &wanted, cancelled, deadline)
                .await
            {
                Ok(reserved) => {
                    for (at, result) in open.into_iter().zip(reserved) {
                        if let Some(result) = result {
                            results.set(at, result);
                        }
                    }
                }
                Err(error) => open.into_iter().for_each(|at| results.set(at, Err(error.clone()))),
            }
        }
        let missing = || Err(Error::internal(RESERVE, "an item was left without a result"));
        results.finish(missing)
    }
}
