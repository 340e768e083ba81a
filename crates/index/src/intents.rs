//! Intents as transactions: what each reads, what custody decides, what is written.

use std::collections::HashMap;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result, SampleId};
use holdfast_custody::{Acknowledged, GroupName, Live, Reason, Reserved, Token, Version};

use crate::batch::{CreditsOf, Decision, Intent, Loaded};
use crate::index::KvIndex;
use crate::kv::{Condition, Write};
use crate::layout::{Layout, Placed, writes};
use crate::session::Session;
use crate::types::{Answered, Commit, Held, Reserve, SampleRef, Versioned};

fn gone(operation: &'static str, sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        operation,
        "there is no such sample, or not any more",
    )
    .with("sample", sample)
}

fn superseded(operation: &'static str, sample: &SampleRef) -> Error {
    Error::new(
        ErrorKind::Fenced,
        operation,
        "this generation of the sample is no longer the live one",
    )
    .with("sample", &sample.sample)
    .with("generation", sample.generation)
}

/// The live record of exactly this generation.
fn live_of(operation: &'static str, layout: &Layout, loaded: &Loaded, sample: &SampleRef) -> Result<Versioned<Live>> {
    match loaded.live(&layout.live(&sample.sample))? {
        Some(live) if live.record.generation == sample.generation => Ok(live),
        Some(_) => Err(superseded(operation, sample)),
        None => Err(gone(operation, &sample.sample)),
    }
}

/// As [`live_of`], for those who show a token: whatever became of the sample, the token holds nothing any more.
fn held_of(operation: &'static str, layout: &Layout, loaded: &Loaded, held: &Held) -> Result<Versioned<Live>> {
    live_of(operation, layout, loaded, &held.sample).map_err(|error| {
        if error.kind() == ErrorKind::NotFound {
            superseded(operation, &held.sample)
        } else {
            error
        }
    })
}

/// Decides an answer to a lease on a live sample.
type DecideAnswer<'a, T> = dyn Fn(&Held, &Versioned<Live>, &Loaded) -> Result<Decision<T>> + Sync + 'a;

impl KvIndex {
    pub(crate) async fn do_reserve(
        &self,
        session: &Session,
        items: &[Reserve],
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        match session.budget {
            Some(budget) => self.reserve_with_credits(session, items, budget, deadline).await,
            None => {
                // Nobody else's reservation is expected: the first try goes without a look.
                self.reserve_now(session, items, None, Loaded::default(), deadline)
                    .await
            }
        }
    }

    /// Reserves, and spends in the same transaction what `credits` says, if anything.
    pub(crate) async fn reserve_now(
        &self,
        session: &Session,
        items: &[Reserve],
        credits: Option<&CreditsOf<'_, Reserve>>,
        seen: Loaded,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        const OPERATION: &str = "index.reserve";
        let keys = |item: &Reserve| {
            let account = credits.map(|_| self.layout().account(session.id()));
            account
                .into_iter()
                .chain([self.layout().pending(&item.sample)])
                .collect()
        };
        let decide = |item: &Reserve, loaded: &Loaded| {
            let key = self.layout().pending(&item.sample);
            if loaded.entry(&key).is_some() {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    OPERATION,
                    "another producer is writing this sample now",
                )
                .with("sample", &item.sample));
            }
            let until = loaded.tick.after(self.config().reserve_ticks);
            let record = Reserved::new(session.id(), item.nonce, item.bytes, until).with_plan(&item.plan);
            let placed = self.layout().place_reserved(&item.sample, &record)?;
            let no_generation = || Error::internal(OPERATION, "the index gave out version zero");
            Ok(Decision {
                conditions: vec![Condition::Absent(key)],
                writes: writes(&[], &[placed]),
                done: Box::new(move |version| Generation::new(version.0).ok_or_else(no_generation)),
            })
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: true,
            credits,
            credit_keys: None,
        };
        let results = self.batch(session, items, intent, Some(seen), deadline).await;
        results
            .into_iter()
            .map(|result| result.and_then(|generation| generation))
            .collect()
    }

    pub(crate) async fn do_commit(
        &self,
        session: &Session,
        items: &[Commit],
        deadline: Deadline,
    ) -> Vec<Result<Version>> {
        const OPERATION: &str = "index.commit";
        let keys = |item: &Commit| {
            vec![
                self.layout().pending(&item.sample.sample),
                self.layout().live(&item.sample.sample),
            ]
        };
        let decide = |item: &Commit, loaded: &Loaded| {
            let SampleRef { sample, generation } = &item.sample;
            let (pending, live) = (self.layout().pending(sample), self.layout().live(sample));
            let reserved = loaded
                .reserved(&pending)?
                .ok_or_else(|| superseded(OPERATION, &item.sample))?;
            let record = reserved
                .record
                .clone()
                .commit(session.id(), *generation, &item.publication)?;
            let mut before = vec![self.layout().place_reserved(sample, &reserved.record)?];
            let mut after: Vec<Placed> = vec![self.layout().place_live(sample, &record)?];
            let mut conditions = vec![Condition::Unchanged(pending, reserved.version)];
            match loaded.live(&live)? {
                Some(older) => {
                    conditions.push(Condition::Unchanged(live, older.version));
                    before.push(self.layout().place_live(sample, &older.record)?);
                    after.push(
                        self.layout()
                            .place_retired(sample, &older.record.retire(Reason::Superseded))?,
                    );
                }
                None => conditions.push(Condition::Absent(live)),
            }
            let mut all = writes(&before, &after);
            all.push(Write::put(
                self.layout().description(sample, *generation),
                item.description.clone(),
            ));
            Ok(Decision {
                conditions,
                writes: all,
                done: Box::new(|version| version),
            })
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, items, intent, None, deadline).await
    }

    pub(crate) async fn do_abort(&self, session: &Session, items: &[SampleRef], deadline: Deadline) -> Vec<Result<()>> {
        const OPERATION: &str = "index.abort";
        let keys = |item: &SampleRef| vec![self.layout().pending(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let pending = self.layout().pending(&item.sample);
            let reserved = loaded
                .reserved(&pending)?
                .ok_or_else(|| gone(OPERATION, &item.sample))?;
            reserved.record.check_owner(OPERATION, session.id(), item.generation)?;
            let retired = reserved.record.clone().abort(Reason::Aborted);
            self.give_up(&item.sample, &reserved, &retired, || ())
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, items, intent, None, deadline).await
    }

    /// Leases samples, for a group or for reading only.
    pub(crate) async fn do_lease(
        &self,
        session: &Session,
        samples: &[SampleRef],
        group: Option<&GroupName>,
        ticks: u64,
        deadline: Deadline,
    ) -> Vec<Result<Held>> {
        const OPERATION: &str = "index.lease";
        let keys = |item: &SampleRef| {
            vec![
                self.layout().live(&item.sample),
                self.layout().description(&item.sample, item.generation),
            ]
        };
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let live = live_of(OPERATION, self.layout(), loaded, item)?;
            let description = loaded
                .entry(&self.layout().description(&item.sample, item.generation))
                .map(|entry| entry.value.clone())
                .ok_or_else(|| {
                    Error::internal(OPERATION, "a live sample has no description").with("sample", &item.sample)
                })?;
            let until = loaded.tick.after(ticks);
            let after = match group {
                Some(group) => live.record.clone().lease(group, session.id(), until)?,
                None => live.record.clone().read(session.id(), until),
            };
            let (sample, group) = (item.clone(), group.cloned());
            self.rewrite(&item.sample, &live, after, move |seen| Held {
                sample,
                group,
                token: Token(seen.version.0),
                description,
                seen,
            })
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: true,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, samples, intent, None, deadline).await
    }

    /// What the holders of leases saw last: good for a first try without a look.
    fn seen(&self, items: &[Held]) -> Loaded {
        let mut seen = HashMap::with_capacity(items.len());
        for item in items {
            seen.insert(self.layout().live(&item.sample.sample), item.seen.clone());
        }
        Loaded::with_seen(seen)
    }

    /// One kind of answer to a lease on a live sample.
    pub(crate) async fn answer<T: Send + 'static>(
        &self,
        operation: &'static str,
        session: &Session,
        items: &[Held],
        decide: &DecideAnswer<'_, T>,
        sets_deadlines: bool,
        deadline: Deadline,
    ) -> Vec<Result<T>> {
        let keys = |item: &Held| vec![self.layout().live(&item.sample.sample)];
        let decide = |item: &Held, loaded: &Loaded| {
            let live = held_of(operation, self.layout(), loaded, item)?;
            decide(item, &live, loaded)
        };
        let intent = Intent {
            operation,
            keys: &keys,
            decide: &decide,
            sets_deadlines,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, items, intent, Some(self.seen(items)), deadline)
            .await
    }

    pub(crate) async fn do_ack(
        &self,
        session: &Session,
        items: &[Held],
        ack: bool,
        deadline: Deadline,
    ) -> Vec<Result<Answered>> {
        let operation = if ack { "index.ack" } else { "index.nack" };
        let decide = |item: &Held, live: &Versioned<Live>, _: &Loaded| {
            let group = item.group.as_ref().ok_or_else(|| {
                Error::invalid(operation, "a plain read is released, not acknowledged")
                    .with("sample", &item.sample.sample)
            })?;
            let record = live.record.clone();
            let after = if ack {
                record.ack(group, item.token)?
            } else {
                record.nack(group, item.token)?
            };
            self.conclude(&item.sample.sample, live, after, |answer| answer)
        };
        self.answer(operation, session, items, &decide, false, deadline).await
    }

    pub(crate) async fn do_renew(
        &self,
        session: &Session,
        items: &[Held],
        ticks: u64,
        deadline: Deadline,
    ) -> Vec<Result<Held>> {
        let decide = |item: &Held, live: &Versioned<Live>, loaded: &Loaded| {
            let after = live.record.clone().renew(item.token, loaded.tick.after(ticks))?;
            let held = item.clone();
            self.rewrite(&item.sample.sample, live, after, move |seen| Held { seen, ..held })
        };
        self.answer("index.renew", session, items, &decide, true, deadline)
            .await
    }

    /// A lease of either kind is let go, on a live sample or on one that has been retired meanwhile.
    pub(crate) async fn do_release(&self, session: &Session, items: &[Held], deadline: Deadline) -> Vec<Result<()>> {
        const OPERATION: &str = "index.release";
        let keys = |item: &Held| {
            vec![
                self.layout().live(&item.sample.sample),
                self.layout()
                    .retired_with_readers(&item.sample.sample, item.sample.generation),
            ]
        };
        let decide = |item: &Held, loaded: &Loaded| {
            let SampleRef { sample, generation } = &item.sample;
            if let Some(retired) = loaded.retired(&self.layout().retired_with_readers(sample, *generation))? {
                let after = retired.record.clone().release(item.token)?;
                return self.drain(sample, &retired, &after, || ());
            }
            let live = held_of(OPERATION, self.layout(), loaded, item)?;
            match &item.group {
                None => {
                    let after = live.record.clone().release(item.token)?;
                    self.rewrite(sample, &live, after, |_| ())
                }
                Some(group) => {
                    let after = live.record.clone().nack(group, item.token)?;
                    self.conclude(sample, &live, after, |_| ())
                }
            }
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, items, intent, None, deadline).await
    }

    pub(crate) async fn do_retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        deadline: Deadline,
    ) -> Vec<Result<Answered>> {
        const OPERATION: &str = "index.retire";
        let keys = |item: &SampleRef| vec![self.layout().live(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let live = live_of(OPERATION, self.layout(), loaded, item)?;
            let retired = live.record.clone().retire(reason);
            self.conclude(&item.sample, &live, Acknowledged::Retired(retired), |answer| answer)
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, items, intent, None, deadline).await
    }

    pub(crate) async fn do_reopen(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        const OPERATION: &str = "index.reopen";
        let keys = |item: &SampleRef| vec![self.layout().live(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let live = live_of(OPERATION, self.layout(), loaded, item)?;
            let after = live.record.clone().reopen();
            self.rewrite(&item.sample, &live, after, |_| ())
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, items, intent, None, deadline).await
    }
}
