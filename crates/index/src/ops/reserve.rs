//! Reserving samples, with or without a quota.

use std::collections::HashSet;

use tensorhold_core::{BatchResults, Deadline, Error, ErrorKind, Generation, Result, Retry};
use tensorhold_custody::{Reserved, Version};
use tokio_util::sync::CancellationToken;

use crate::index::TxnIndex;
use crate::quota::{MOST_OPERATIONS, MOST_TEXT, written_len};
use crate::record::grants::{Grant, Holding};
use crate::record::refusal::{being_written, check_claims, generation_of, owned, owner};
use crate::record::types::Reserve;
use crate::store::{Condition, Write};
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::{Decision, set_version};
use crate::txn::session::Session;

const RESERVE: &str = "index.reserve";

/// How many of the next items are reserved together, with `most` operations at most unless the first one has more. All of them must
/// be had at once, so a good part of the budget would wait for all others to be done; and the process that serves them needs room
/// for them in a transaction.
fn how_many_together(items: &[Reserve], budget: u64, most: usize) -> usize {
    let (mut bytes, mut text, mut operations) = (0_u64, 0, 0);
    let (mut samples, mut claims) = (HashSet::new(), HashSet::new());
    let mut together = 0;
    for item in items {
        bytes = bytes.saturating_add(item.bytes);
        text += written_len(&item.plan);
        operations += 1 + item.claims.len();
        let fits = bytes <= budget / 4 && text <= MOST_TEXT / 2 && operations <= most.min(MOST_OPERATIONS);
        // One transaction writes no key twice.
        let is_new = samples.insert(&item.sample) && item.claims.iter().all(|claim| claims.insert(claim));
        if !is_new || !fits {
            break;
        }
        together += 1;
    }
    together.max(1)
}

/// Whether a sample can be reserved at all.
fn can_be_reserved(item: &Reserve, budget: u64) -> Result<()> {
    if item.bytes > budget {
        let message = "this sample is larger than the store's whole budget";
        let error = Error::new(ErrorKind::Capacity, RESERVE, message).with("sample", &item.sample);
        return Err(error.with_retry(Retry::Never));
    }
    // Its claims take the rest.
    if written_len(&item.plan) > MOST_TEXT / 4 * 3 {
        let message = "this sample's plan is longer than a transaction holds; put it in parts, or with larger chunks";
        return Err(Error::invalid(RESERVE, message).with("sample", &item.sample));
    }
    Ok(())
}

impl TxnIndex {
    pub(crate) async fn do_reserve(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        if session.needs_quota {
            return self.reserve_with_quota(session, items, cancelled, deadline).await;
        }
        self.reserve_without_quota(session, items, deadline).await
    }

    async fn reserve_without_quota(
        &self,
        session: &Session,
        items: &[Reserve],
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
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
            let record = Reserved::new(session.id(), item.nonce, item.bytes, until)
                .stamped(self.core.wall())
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
        let intent = Intent::new(RESERVE, &keys, &decide).setting_deadlines(true);
        // No other producer's reservation is expected, so the first attempt reads nothing.
        let seen = Some(Loaded::default());
        let results = self.core.batch(session, items, intent, seen, deadline).await;
        results
            .into_iter()
            .map(|result| result.and_then(generation_of))
            .collect()
    }

    /// Reserves with quota: what belongs together at once, one lot after the other.
    async fn reserve_with_quota(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let mut results = Vec::with_capacity(items.len());
        let mut rest = items;
        while let Some(first) = rest.first() {
            let budget = match self.quota.budget_for(first.bytes, deadline).await {
                Ok(budget) => budget,
                Err(error) => {
                    results.extend(rest.iter().map(|_| Err(error.clone())));
                    break;
                }
            };
            let (now, later) = rest.split_at(how_many_together(rest, budget, self.quota.most_operations_together()));
            rest = later;
            if let Err(error) = can_be_reserved(first, budget) {
                results.push(Err(error));
                continue;
            }
            results.extend(self.reserve_together(session, now, cancelled, deadline).await);
        }
        results
    }

    /// Reserves items that belong together. If other producers write some of them, the rest is tried again.
    async fn reserve_together(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let mut results = BatchResults::new(items.len());
        for (at, item) in items.iter().enumerate() {
            if let Err(error) = check_claims(item) {
                results.set(at, Err(error));
            }
        }
        loop {
            let open = results.open();
            let wanted: Vec<Reserve> = open.iter().map(|at| items[*at].clone()).collect();
            if wanted.is_empty() {
                break;
            }
            match self.quota.reserve(session, &wanted, cancelled, deadline).await {
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
