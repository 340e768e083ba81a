//! Answers to leases, and taking samples out of circulation or back into it: what each reads, what custody decides,
//! what is written.

use std::borrow::Cow;

use tensorhold_core::{Deadline, Error, ErrorKind, Result};
use tensorhold_custody::{Acknowledged, GroupName, Live, Reason, Retired};

use crate::index::TxnIndex;
use crate::record::grants::held_until;
use crate::record::layout::Layout;
use crate::record::refusal::superseded;
use crate::record::types::{AckOutcome, LeaseGrant, SampleRef, Versioned};
use crate::txn::batch::live_of;
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::Decision;
use crate::txn::session::Session;

/// As [`live_of`], for a caller that presents a token: if the sample is gone, the token is no longer good.
fn held_of<'a>(
    operation: &'static str,
    layout: &Layout,
    loaded: &Loaded,
    held: &'a LeaseGrant,
) -> Result<Cow<'a, Versioned<Live>>> {
    live_of(operation, layout, loaded, &held.sample, Some(&held.seen)).map_err(|error| {
        if error.kind() == ErrorKind::NotFound {
            superseded(operation, &held.sample)
        } else {
            error
        }
    })
}

/// A nack; it costs no attempt if the lease served no caller.
fn hand_back(record: Live, group: &GroupName, item: &LeaseGrant) -> Result<Acknowledged> {
    if item.unserved {
        record.give_back(group, item.token).map(Acknowledged::Live)
    } else {
        record.nack(group, item.token)
    }
}

/// Decides an answer to a lease on a live sample.
type DecideAnswer<'a, T> = dyn Fn(&LeaseGrant, &Versioned<Live>, &Loaded) -> Result<Decision<T>> + Sync + 'a;

impl TxnIndex {
    /// One kind of answer to a lease on a live sample. The first attempt uses the record as its holder saw it last.
    pub(crate) async fn answer<T: Send>(
        &self,
        operation: &'static str,
        session: &Session,
        items: &[LeaseGrant],
        decide: &DecideAnswer<'_, T>,
        sets_deadlines: bool,
        deadline: Deadline,
    ) -> Vec<Result<T>> {
        let keys = |item: &LeaseGrant| vec![self.core.layout().live(&item.sample.sample)];
        let decide = |item: &LeaseGrant, loaded: &Loaded| {
            let live = held_of(operation, self.core.layout(), loaded, item)?;
            decide(item, &live, loaded)
        };
        let intent = Intent::new(operation, &keys, &decide).setting_deadlines(sets_deadlines);
        self.core
            .batch(session, items, intent, Some(Loaded::default()), deadline)
            .await
    }

    pub(crate) async fn do_ack(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        ack: bool,
        deadline: Deadline,
    ) -> Vec<Result<AckOutcome>> {
        let operation = if ack { "index.ack" } else { "index.nack" };
        let decide = |item: &LeaseGrant, live: &Versioned<Live>, loaded: &Loaded| {
            let group = item.group.as_ref().ok_or_else(|| {
                Error::invalid(operation, "a plain read is released, not acknowledged")
                    .with("sample", &item.sample.sample)
            })?;
            let record = live.record.clone();
            let after = if ack {
                record.ack(group, item.token)?
            } else {
                hand_back(record, group, item)?
            };
            let change = loaded.change(session);
            let decision = self
                .core
                .conclude(&item.sample.sample, live, after, change, |answer| answer)?;
            Ok(decision.ending(item.grant.clone()))
        };
        self.answer(operation, session, items, &decide, false, deadline).await
    }

    pub(crate) async fn do_use_up(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        deadline: Deadline,
    ) -> Vec<Result<AckOutcome>> {
        const OPERATION: &str = "index.use_up";
        let decide = |item: &LeaseGrant, live: &Versioned<Live>, loaded: &Loaded| {
            if item.group.is_some() {
                let message = "a group acknowledges what it has used; a plain read uses it up";
                return Err(Error::invalid(OPERATION, message).with("sample", &item.sample.sample));
            }
            let after = live.record.clone().use_up(item.token)?;
            let change = loaded.change(session);
            let decision = self
                .core
                .conclude(&item.sample.sample, live, after, change, |answer| answer)?;
            Ok(decision.ending(item.grant.clone()))
        };
        self.answer(OPERATION, session, items, &decide, false, deadline).await
    }

    pub(crate) async fn do_renew(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        ticks: u64,
        deadline: Deadline,
    ) -> Vec<Result<LeaseGrant>> {
        let decide = |item: &LeaseGrant, live: &Versioned<Live>, loaded: &Loaded| {
            let after = live.record.clone().renew(item.token, loaded.tick.after(ticks))?;
            // The lease may already run longer than that.
            let lease = after.leases().find(|lease| lease.has(item.token)).copied();
            let (to, until) = lease.map_or((session.id(), loaded.tick), |lease| (lease.session, lease.until));
            let seen = |seen| LeaseGrant { seen, ..item.clone() };
            let decision = self
                .core
                .rewrite(&item.sample.sample, live, after, session.id(), seen)?;
            Ok(decision
                .settling(LeaseGrant::settle)
                .giving(held_until(&item.sample, to, until))
                .ending(item.grant.clone()))
        };
        self.answer("index.renew", session, items, &decide, true, deadline)
            .await
    }

    /// Releases a lease of either kind, on a live sample or on one that has been retired meanwhile.
    pub(crate) async fn do_release(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        const OPERATION: &str = "index.release";
        let keys = |item: &LeaseGrant| {
            vec![
                self.core.layout().live(&item.sample.sample),
                self.core
                    .layout()
                    .retired_with_readers(&item.sample.sample, item.sample.generation),
            ]
        };
        let decide = |item: &LeaseGrant, loaded: &Loaded| {
            let SampleRef { sample, generation } = &item.sample;
            let retired: Option<Versioned<Retired>> =
                loaded.record(&self.core.layout().retired_with_readers(sample, *generation))?;
            if let Some(retired) = retired {
                let after = retired.record.clone().release(item.token)?;
                let decision = self.core.replace_retired(sample, &retired, &after, ())?;
                return Ok(decision.ending(item.grant.clone()));
            }
            let live = held_of(OPERATION, self.core.layout(), loaded, item)?;
            let decision = match &item.group {
                None => {
                    let after = live.record.clone().release(item.token)?;
                    self.core.rewrite(sample, &live, after, session.id(), |_| ())?
                }
                Some(group) => {
                    let after = hand_back(live.record.clone(), group, item)?;
                    self.core
                        .conclude(sample, &live, after, loaded.change(session), |_| ())?
                }
            };
            Ok(decision.ending(item.grant.clone()))
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        self.core.batch(session, items, intent, None, deadline).await
    }

    pub(crate) async fn do_retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        deadline: Deadline,
    ) -> Vec<Result<AckOutcome>> {
        const OPERATION: &str = "index.retire";
        let keys = |item: &SampleRef| vec![self.core.layout().live(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let live = live_of(OPERATION, self.core.layout(), loaded, item, None)?;
            let mut retired = live.record.clone().retire(reason);
            if reason == Reason::Lost {
                retired = retired.kept_until(loaded.tick.after(self.core.config().lost_ticks));
            }
            let (retired, change) = (Acknowledged::Retired(retired), loaded.change(session));
            self.core
                .conclude(&item.sample, &live, retired, change, |answer| answer)
        };
        let intent = Intent::new(OPERATION, &keys, &decide).setting_deadlines(reason == Reason::Lost);
        self.core.batch(session, items, intent, None, deadline).await
    }

    pub(crate) async fn do_reopen(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        const OPERATION: &str = "index.reopen";
        let keys = |item: &SampleRef| vec![self.core.layout().live(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let live = live_of(OPERATION, self.core.layout(), loaded, item, None)?;
            let after = live.record.clone().reopen();
            self.core.rewrite(&item.sample, &live, after, session.id(), |_| ())
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        self.core.batch(session, items, intent, None, deadline).await
    }
}
