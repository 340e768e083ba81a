//! Reserving, committing, aborting and leasing samples, as transactions: what each reads, what custody decides, what is
//! written.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, ObjectKey, Result, SampleId};
use holdfast_custody::{GroupName, Live, Reason, Reserved, SessionId, Tick, Token, Version};

use tokio_util::sync::CancellationToken;

use crate::batch::{Intent, Loaded, QuotaChange};
use crate::decision::{Decision, Done};
use crate::grants::{Grant, Holding};
use crate::index::TxnIndex;
use crate::layout::Layout;
use crate::quota::generation_of;
use crate::record::unreadable;
use crate::record_cache::CachedRecord;
use crate::session::Session;
use crate::shards::ReadyEntry;
use crate::store::{Condition, Entry, Write};
use crate::types::{Commit, LeaseGrant, MOST_CLAIMS, Reserve, SampleRef, Terms, Versioned};

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

/// As [`being_written`], when it is not known whether that is the reason, or that another sample owns one of its
/// objects.
pub(crate) fn being_written_or_owned(item: &Reserve) -> Error {
    if item.claims.is_empty() {
        return being_written(&item.sample);
    }
    Error::new(
        ErrorKind::Conflict,
        "index.reserve",
        "another producer is writing this sample now, or one of its objects is in the custody of another",
    )
    .with("sample", &item.sample)
}

/// Another sample, or another generation of this one, owns an object that was to be claimed.
pub(crate) fn owned(sample: &SampleId, key: &ObjectKey, owner: &SampleRef) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "index.reserve",
        "this object is in the custody of another sample, or of an earlier generation that is not freed yet",
    )
    .with("sample", sample)
    .with("key", key)
    .with("owner", &owner.sample)
    .with("owner_generation", owner.generation)
}

/// The owner that a claim names. The claim was written with the reservation, so its version is the generation.
pub(crate) fn owner(claim: &Entry) -> Result<SampleRef> {
    let no_name = || unreadable(&claim.key, "this entry is not a claim: its value names no sample");
    let sample = std::str::from_utf8(&claim.value)
        .ok()
        .and_then(|name| SampleId::new(name).ok());
    Ok(SampleRef {
        sample: sample.ok_or_else(no_name)?,
        generation: generation_of(claim.version)?,
    })
}

pub(crate) fn check_claims(item: &Reserve) -> Result<()> {
    let refuse = |why: &str| Err(Error::invalid("index.reserve", why).with("sample", &item.sample));
    if item.claims.len() > MOST_CLAIMS {
        return refuse("a sample may own at most 64 objects that another writer named");
    }
    let distinct: HashSet<&ObjectKey> = item.claims.iter().collect();
    if distinct.len() < item.claims.len() {
        return refuse("an object is named twice; name each once");
    }
    Ok(())
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

/// The live record of exactly this generation: the one that the caller has `seen`, as long as nothing was read.
pub(crate) fn live_of<'a>(
    operation: &'static str,
    layout: &Layout,
    loaded: &Loaded,
    sample: &SampleRef,
    seen: Option<&'a Versioned<Live>>,
) -> Result<Cow<'a, Versioned<Live>>> {
    let live = match seen.filter(|_| loaded.guess) {
        Some(seen) => Some(Cow::Borrowed(seen)),
        None => loaded.record(&layout.live(&sample.sample))?.map(Cow::Owned),
    };
    match live {
        Some(live) if live.record.generation == sample.generation => Ok(live),
        Some(_) => Err(superseded(operation, sample)),
        None => Err(gone(operation, &sample.sample)),
    }
}

pub(crate) fn held_until(sample: &SampleRef, to: SessionId, until: Tick) -> Grant {
    let what = Holding {
        sample: sample.sample.clone(),
        generation: Some(sample.generation),
    };
    Grant { to, until, what }
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
        let keys = |item: &Reserve| self.layout().in_its_way(&item.sample, &item.claims).collect();
        let decide = |item: &Reserve, loaded: &Loaded| {
            check_claims(item)?;
            // Decoded, because a reservation that cannot be decoded would block the sample's name for ever: it is
            // quarantined.
            if loaded
                .record::<Reserved>(&self.layout().pending(&item.sample))?
                .is_some()
            {
                return Err(being_written(&item.sample));
            }
            for key in &item.claims {
                if let Some(claim) = loaded.entry(&self.layout().claim(key)) {
                    return Err(owned(&item.sample, key, &owner(claim)?));
                }
            }
            let until = loaded.tick.after(self.config().reserve_ticks);
            let paid = if credits.is_some() { item.bytes } else { 0 };
            let record = Reserved::new(session.id(), item.nonce, item.bytes, until)
                .with_paid(paid)
                .with_plan(&item.plan)
                .with_claims(&item.claims);
            let in_its_way = self.layout().in_its_way(&item.sample, &item.claims);
            let conditions = in_its_way.map(Condition::Absent).collect();
            let mut writes: Vec<Write> = self.layout().put_claims(&item.sample, &item.claims).collect();
            // Put last, because `remembering` remembers the last write.
            writes.push(self.layout().put_reserved(&item.sample, &record)?);
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
        let results = self.batch(session, items, intent, seen, deadline).await;
        results
            .into_iter()
            .map(|result| result.and_then(generation_of))
            .collect()
    }

    pub(crate) async fn do_commit(
        &self,
        session: &Session,
        items: &[Commit],
        deadline: Deadline,
    ) -> Vec<Result<Version>> {
        const OPERATION: &str = "index.commit";
        // The session need not read what it has just reserved, and hardly any sample was live before.
        let mut grants = HashMap::new();
        let reserved = items.iter().filter_map(|item| {
            let key = self.layout().pending(&item.sample.sample);
            let CachedRecord { value, version, grant } = session.recall(&key)?;
            grants.extend(grant.map(|grant| (item.sample.sample.clone(), grant)));
            Some(Entry { key, value, version })
        });
        let seen = Loaded::with_entries(reserved);
        let keys = |item: &Commit| {
            vec![
                self.layout().pending(&item.sample.sample),
                self.layout().live(&item.sample.sample),
            ]
        };
        let decide = |item: &Commit, loaded: &Loaded| {
            let SampleRef { sample, generation } = &item.sample;
            let (pending, live) = (self.layout().pending(sample), self.layout().live(sample));
            let reserved: Versioned<Reserved> = loaded
                .record(&pending)?
                .ok_or_else(|| superseded(OPERATION, &item.sample))?;
            let record = reserved.record.commit(session.id(), *generation, &item.publication)?;
            let description = Some(Arc::from(item.description.as_slice()));
            let older: Option<Versioned<Live>> = loaded.record(&live)?;
            let before = older.as_ref().map(|older| &older.record);
            let mut writes = self.layout().put_live(sample, before, &record, &description)?;
            writes.push(Write::Delete(pending.clone()));
            let mut conditions = vec![Condition::Unchanged(pending, reserved.version)];
            match older {
                Some(older) => {
                    conditions.push(Condition::Unchanged(live, older.version));
                    let retired = older.record.retire(Reason::Superseded);
                    writes.push(self.layout().put_retired(sample, &retired, &older.description)?);
                }
                None => conditions.push(Condition::Absent(live)),
            }
            let decision = Decision::new(conditions, writes, Version::default());
            Ok(decision.settling(set_version).ending(grants.get(sample).cloned()))
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
            let reserved: Versioned<Reserved> =
                loaded.record(&pending)?.ok_or_else(|| gone(OPERATION, &item.sample))?;
            reserved.record.check_owner(OPERATION, session.id(), item.generation)?;
            let retired = reserved.record.clone().abort(Reason::Aborted);
            self.give_up(&item.sample, &reserved, &retired, ())
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

    /// Leases samples for a group, or for reading only, on these terms. The first attempt uses the copies of the
    /// records, if all samples have one, instead of reading.
    pub(crate) async fn do_lease(
        &self,
        session: &Session,
        samples: &[ReadyEntry],
        group: Option<&GroupName>,
        ticks: u64,
        terms: Terms<'_>,
        deadline: Deadline,
    ) -> Vec<Result<LeaseGrant>> {
        const OPERATION: &str = "index.lease";
        let keys = |item: &ReadyEntry| vec![self.layout().live(&item.sample.sample)];
        let decide = |item: &ReadyEntry, loaded: &Loaded| {
            let ReadyEntry { sample, copied } = item;
            let live = live_of(OPERATION, self.layout(), loaded, sample, copied.as_ref())?;
            let description = live.description.clone().ok_or_else(|| {
                Error::internal(OPERATION, "a live sample has no description").with("sample", &sample.sample)
            })?;
            (terms.usable)(sample, &description)?;
            let until = loaded.tick.after(ticks);
            let record = live.record.clone();
            let after = match group {
                Some(group) => record.lease(group, session.id(), until)?,
                None => record.read(session.id(), until),
            };
            let decision = self.rewrite(&sample.sample, &live, after, |seen| LeaseGrant {
                sample: sample.clone(),
                group: group.cloned(),
                token: Token::THIS_WRITE,
                description,
                unserved: false,
                seen,
                grant: None,
            })?;
            let decision = decision.settling(|held, done| {
                held.token = Token(done.version.0);
                held.settle(done);
            });
            Ok(decision.giving(held_until(sample, session.id(), until)))
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: true,
            credits: None,
        };
        let all_seen = samples.iter().all(|found| found.copied.is_some());
        let seen = all_seen.then(Loaded::default);
        let told_by = deadline.later(terms.settle);
        self.batch_told_by(session, samples, intent, seen, deadline, told_by)
            .await
    }
}

fn set_version(version: &mut Version, done: Done) {
    *version = done.version;
}

impl LeaseGrant {
    /// Fills in what is known only once the lease has been written.
    pub(crate) fn settle(&mut self, done: Done) {
        self.seen.record.settle(done.version);
        self.seen.version = done.version;
        self.grant = done.grant;
    }
}
