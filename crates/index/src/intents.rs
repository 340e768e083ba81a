//! Making samples and taking them, as transactions: what each reads, what custody decides, what is written.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result, SampleId};
use holdfast_custody::{GroupName, Live, Reason, Reserved, SessionId, Tick, Token, Version};

use crate::batch::{Credits, Intent, Loaded};
use crate::credits::generation_of;
use crate::decision::Decision;
use crate::index::KvIndex;
use crate::kv::Condition;
use crate::layout::{Home, Layout, Placed, writes};
use crate::notes::{Given, Holding};
use crate::session::Session;
use crate::types::{Commit, Held, Reserve, SampleRef, Versioned};

pub(crate) fn gone(operation: &'static str, sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        operation,
        "there is no such sample, or not any more",
    )
    .with("sample", sample)
}

pub(crate) fn being_written(sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "index.reserve",
        "another producer is writing this sample now",
    )
    .with("sample", sample)
}

pub(crate) fn superseded(operation: &'static str, sample: &SampleRef) -> Error {
    Error::new(
        ErrorKind::Fenced,
        operation,
        "this generation of the sample is no longer the live one",
    )
    .with("sample", &sample.sample)
    .with("generation", sample.generation)
}

/// The live record of exactly this generation.
pub(crate) fn live_of(
    operation: &'static str,
    layout: &Layout,
    loaded: &Loaded,
    sample: &SampleRef,
) -> Result<Versioned<Live>> {
    match loaded.live(layout, &sample.sample)? {
        Some(live) if live.record.generation == sample.generation => Ok(live),
        Some(_) => Err(superseded(operation, sample)),
        None => Err(gone(operation, &sample.sample)),
    }
}

pub(crate) fn held_until(sample: &SampleRef, to: SessionId, until: Tick) -> Given {
    let what = Holding {
        sample: sample.sample.clone(),
        generation: Some(sample.generation),
    };
    Given { to, until, what }
}

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
                self.reserve_now(session, items, None, Some(Loaded::default()), deadline)
                    .await
            }
        }
    }

    /// Reserves, and pays for it in the same transaction if there are credits. The first try goes by `seen`, if something
    /// was.
    pub(crate) async fn reserve_now(
        &self,
        session: &Session,
        items: &[Reserve],
        credits: Option<&dyn Credits<Reserve>>,
        seen: Option<Loaded>,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        const OPERATION: &str = "index.reserve";
        let keys = |item: &Reserve| vec![self.layout().pending(&item.sample)];
        let decide = |item: &Reserve, loaded: &Loaded| {
            let key = self.layout().pending(&item.sample);
            if loaded.entry(&key).is_some() {
                return Err(being_written(&item.sample));
            }
            let until = loaded.tick.after(self.config().reserve_ticks);
            let paid = if credits.is_some() { item.bytes } else { 0 };
            let record = Reserved::new(session.id(), item.nonce, item.bytes, until)
                .with_paid(paid)
                .with_plan(&item.plan);
            let placed = self.layout().place_reserved(&item.sample, &record)?;
            let what = Holding {
                sample: item.sample.clone(),
                generation: None,
            };
            let conditions = vec![Condition::Absent(key.clone())];
            Ok(
                Decision::new(conditions, writes(Vec::new(), vec![placed]), move |done| {
                    generation_of(done.version)
                })
                .giving(Given {
                    to: session.id(),
                    until,
                    what,
                })
                .remembering(key),
            )
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: true,
            credits,
        };
        let results = self.batch(session, items, intent, seen, deadline).await;
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
        // What this session has just reserved it need not read, and hardly any sample has been live before.
        let reserved = |item: &Commit| session.recall(&self.layout().pending(&item.sample.sample));
        let remembered: Vec<_> = items.iter().filter_map(reserved).collect();
        let seen = Loaded::with_entries(remembered.iter().map(|known| known.entry.clone()));
        let notes: HashMap<String, _> = remembered
            .into_iter()
            .filter_map(|known| Some((known.entry.key, known.note?)))
            .collect();
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
            let description = Some(Arc::from(item.description.as_slice()));
            let mut before = vec![Home::from(pending.clone())];
            let mut after: Vec<Placed> = vec![self.layout().place_live(sample, &record, &description)?];
            let note = notes.get(&pending).cloned();
            let mut conditions = vec![Condition::Unchanged(pending, reserved.version)];
            match loaded.live(self.layout(), sample)? {
                Some(older) => {
                    conditions.push(Condition::Unchanged(live, older.version));
                    before.push(self.layout().live_home(sample, &older.record));
                    let retired = older.record.retire(Reason::Superseded);
                    after.push(self.layout().place_retired(sample, &retired, &older.description)?);
                }
                None => conditions.push(Condition::Absent(live)),
            }
            Ok(Decision::new(conditions, writes(before, after), |done| done.version).ending(note, sample))
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
        };
        self.batch(session, items, intent, Some(seen), deadline).await
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
        };
        self.batch(session, items, intent, None, deadline).await
    }

    /// Leases samples, for a group or for reading only. The first try goes by `seen`, if something was.
    pub(crate) async fn do_lease(
        &self,
        session: &Session,
        samples: &[SampleRef],
        group: Option<&GroupName>,
        ticks: u64,
        seen: Option<Loaded>,
        deadline: Deadline,
    ) -> Vec<Result<Held>> {
        const OPERATION: &str = "index.lease";
        let keys = |item: &SampleRef| vec![self.layout().live(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let live = live_of(OPERATION, self.layout(), loaded, item)?;
            let description = live.description.as_deref().map(<[u8]>::to_vec).ok_or_else(|| {
                Error::internal(OPERATION, "a live sample has no description").with("sample", &item.sample)
            })?;
            let until = loaded.tick.after(ticks);
            let after = match group {
                Some(group) => live.record.clone().lease(group, session.id(), until)?,
                None => live.record.clone().read(session.id(), until),
            };
            let (sample, group) = (item.clone(), group.cloned());
            let decision = self.rewrite(&item.sample, &live, after, move |seen, done| Held {
                sample,
                group,
                token: Token(seen.version.0),
                description,
                seen,
                note: done.note,
            })?;
            Ok(decision.giving(held_until(item, session.id(), until)))
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: true,
            credits: None,
        };
        self.batch(session, samples, intent, seen, deadline).await
    }
}
