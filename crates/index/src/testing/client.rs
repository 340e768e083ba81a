//! The processes with which a case works.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure_eq};
use tensorhold_core::{Error, Generation, Nonce, Result, SampleId};
use tensorhold_custody::{GroupName, Live, Publication, Reason, Tick, Version};

use crate::{
    AckOutcome, Becomes, Commit, CommitOutcome, FreeTask, Index, LeaseGrant, LiveSample, Reserve, SampleRef, Session,
    SweepReport,
};

/// How long a call of a healthy index may take. Generous: other tests compile and run beside this one.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// Ticks of a lease that no case lets expire.
pub(super) const LONG: u64 = 1000;
/// More than any case has.
pub(super) const ALL: usize = 1000;

/// Group `a`.
pub(super) fn a() -> CaseResult<GroupName> {
    group("a")
}

/// Group `b`.
pub(super) fn b() -> CaseResult<GroupName> {
    group("b")
}

/// A group.
pub(super) fn group(name: &str) -> CaseResult<GroupName> {
    Ok(GroupName::new(name)?)
}

/// A publication for these groups, with three attempts each.
pub(super) fn published_for(groups: &[&str]) -> CaseResult<Publication> {
    Ok(Publication {
        groups: groups.iter().map(|name| group(name)).collect::<CaseResult<_>>()?,
        retain: false,
        max_attempts: 3,
    })
}

/// The result of a batch of one.
pub(super) fn only<T>(results: Vec<Result<T>>) -> Result<T> {
    let count = results.len();
    let mut results = results.into_iter();
    match (results.next(), count) {
        (Some(result), 1) => result,
        _ => {
            Err(Error::internal("testing.only", "a batch of one had another number of results").with("results", count))
        }
    }
}

/// One process that uses the case's store.
#[derive(Clone)]
pub struct Client {
    index: Arc<dyn Index>,
    session: Arc<Session>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.session)
    }
}

impl Client {
    /// A process with a session of its own.
    pub async fn open(index: Arc<dyn Index>) -> CaseResult<Self> {
        let session = Arc::new(index.open_session(CALL).await?);
        Ok(Self { index, session })
    }

    /// The index itself.
    pub fn index(&self) -> &dyn Index {
        &*self.index
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Reserves a sample.
    pub async fn try_reserve(&self, label: &str) -> Result<SampleRef> {
        let sample = SampleId::new(label)?;
        let item = Reserve {
            sample: sample.clone(),
            nonce: Nonce::from_u64(7),
            bytes: 4096,
            plan: format!("plan of {label}"),
            claims: Vec::new(),
        };
        let generation: Generation = only(self.index.reserve(&self.session, &[item], CALL).await)?;
        Ok(SampleRef { sample, generation })
    }

    /// Reserves a sample, which must work.
    pub async fn reserve(&self, label: &str) -> CaseResult<SampleRef> {
        Ok(self.try_reserve(label).await?)
    }

    /// Commits a reservation.
    pub async fn commit_as(&self, sample: &SampleRef, publication: Publication) -> Result<Version> {
        Ok(self.try_commit(sample, publication).await?.version)
    }

    /// Commits a reservation, and says what became of it.
    pub async fn try_commit(&self, sample: &SampleRef, publication: Publication) -> Result<CommitOutcome> {
        let item = Commit {
            becomes: None,
            sample: sample.clone(),
            publication,
            description: description(sample),
        };
        only(self.index.commit(&self.session, &[item], CALL).await)
    }

    /// Makes reservations ahead, with one write.
    pub async fn reserve_ahead(&self, count: usize) -> Result<Vec<SampleRef>> {
        let wish = |_| {
            Ok(Reserve {
                sample: self.session.name_ahead()?,
                nonce: Nonce::from_u64(7),
                bytes: 0,
                plan: "plan of a reservation made ahead".to_owned(),
                claims: Vec::new(),
            })
        };
        let wishes: Vec<Reserve> = (0..count).map(wish).collect::<Result<_>>()?;
        let reserved = self.index.reserve(&self.session, &wishes, CALL).await;
        let reserved = wishes.into_iter().zip(reserved).map(|(wish, generation)| {
            Ok(SampleRef {
                sample: wish.sample,
                generation: generation?,
            })
        });
        reserved.collect()
    }

    /// Commits a reservation that was made ahead, as this sample.
    pub async fn commit_ahead(&self, reserved: &SampleRef, label: &str, publication: Publication) -> Result<SampleRef> {
        let sample = SampleId::new(label)?;
        let item = Commit {
            sample: reserved.clone(),
            becomes: Some(Becomes {
                sample: sample.clone(),
                bytes: 4096,
            }),
            publication,
            description: description(reserved),
        };
        let version = only(self.index.commit(&self.session, &[item], CALL).await)?.version;
        let generation = Generation::new(version.0);
        let generation = generation.ok_or_else(|| Error::internal("testing", "a commit without a version"))?;
        Ok(SampleRef { sample, generation })
    }

    /// Gives up a reservation under which nothing was written.
    pub async fn unreserve(&self, sample: &SampleRef) -> Result<()> {
        let items = std::slice::from_ref(sample);
        only(self.index.unreserve(&self.session, items, CALL).await)
    }

    /// Commits a reservation for groups, which must work.
    pub async fn commit(&self, sample: &SampleRef, groups: &[&str]) -> CaseResult {
        self.commit_as(sample, published_for(groups)?).await?;
        Ok(())
    }

    /// Makes a sample for groups.
    pub async fn publish(&self, label: &str, groups: &[&str]) -> CaseResult<SampleRef> {
        self.publish_as(label, published_for(groups)?).await
    }

    /// Makes a sample.
    pub async fn publish_as(&self, label: &str, publication: Publication) -> CaseResult<SampleRef> {
        let sample = self.reserve(label).await?;
        self.commit_as(&sample, publication).await?;
        Ok(sample)
    }

    /// Makes many samples for a group, in batches: `{label}-0000`, `{label}-0001`, and so on.
    pub async fn publish_many(&self, label: &str, count: usize, groups: &[&str]) -> CaseResult<Vec<SampleRef>> {
        let wanted: Vec<Reserve> = (0..count)
            .map(|i| {
                Ok(Reserve {
                    sample: SampleId::new(format!("{label}-{i:04}"))?,
                    nonce: Nonce::from_u64(7),
                    bytes: 1,
                    plan: String::new(),
                    claims: Vec::new(),
                })
            })
            .collect::<CaseResult<_>>()?;
        let mut samples = Vec::with_capacity(count);
        for (wanted, generation) in wanted
            .iter()
            .zip(self.index.reserve(&self.session, &wanted, CALL).await)
        {
            samples.push(SampleRef {
                sample: wanted.sample.clone(),
                generation: generation?,
            });
        }
        let publication = published_for(groups)?;
        let commits: Vec<Commit> = samples
            .iter()
            .map(|sample| Commit {
                becomes: None,
                sample: sample.clone(),
                publication: publication.clone(),
                description: description(sample),
            })
            .collect();
        for result in self.index.commit(&self.session, &commits, CALL).await {
            result?;
        }
        ensure_eq!(samples.len(), count, "the number of samples made");
        Ok(samples)
    }

    /// Aborts a reservation.
    pub async fn abort(&self, sample: &SampleRef) -> Result<()> {
        only(
            self.index
                .abort(&self.session, std::slice::from_ref(sample), CALL)
                .await,
        )
    }

    /// Leases a sample for a group.
    pub async fn lease_for(&self, group: &GroupName, sample: &SampleRef, ticks: u64) -> Result<LeaseGrant> {
        let items = std::slice::from_ref(sample);
        only(self.index.lease(&self.session, group, items, ticks, CALL).await)
    }

    /// Leases a sample for group `a`, for long.
    pub async fn lease(&self, sample: &SampleRef) -> CaseResult<LeaseGrant> {
        Ok(self.lease_for(&a()?, sample, LONG).await?)
    }

    /// Leases all samples that wait for a group now, in one call.
    pub async fn next(&self, group: &GroupName, count: usize, within: Duration) -> Result<Vec<LeaseGrant>> {
        self.index.lease_next(&self.session, group, count, LONG, within).await
    }

    /// Leases one sample that waits for a group, if there is one in time.
    pub async fn next_one(&self, group: &GroupName, within: Duration) -> Result<Option<LeaseGrant>> {
        Ok(self.next(group, 1, within).await?.pop())
    }

    /// Takes a lease for reading.
    pub async fn read(&self, sample: &SampleRef, ticks: u64) -> Result<LeaseGrant> {
        let items = std::slice::from_ref(sample);
        only(self.index.lease_shared(&self.session, items, ticks, CALL).await)
    }

    /// Extends a lease.
    pub async fn renew(&self, held: &LeaseGrant, ticks: u64) -> Result<LeaseGrant> {
        let items = std::slice::from_ref(held);
        only(self.index.renew(&self.session, items, ticks, CALL).await)
    }

    /// Acknowledges that a sample was used.
    pub async fn ack(&self, held: &LeaseGrant) -> Result<AckOutcome> {
        only(self.index.ack(&self.session, std::slice::from_ref(held), CALL).await)
    }

    /// Acknowledges the only use of a sample, and records that its objects are gone.
    pub async fn ack_and_free(&self, held: &LeaseGrant) -> Result<()> {
        self.ack(held).await?;
        self.freed(&held.sample).await.map(drop)
    }

    /// Hands a sample back.
    pub async fn nack(&self, held: &LeaseGrant) -> Result<AckOutcome> {
        only(self.index.nack(&self.session, std::slice::from_ref(held), CALL).await)
    }

    /// Releases a lease.
    pub async fn release(&self, held: &LeaseGrant) -> Result<()> {
        let items = std::slice::from_ref(held);
        only(self.index.release(&self.session, items, CALL).await)
    }

    /// Releases a reader's lease on a sample that it has used up.
    pub async fn use_up(&self, held: &LeaseGrant) -> Result<AckOutcome> {
        let items = std::slice::from_ref(held);
        only(self.index.use_up(&self.session, items, CALL).await)
    }

    /// Undoes a lease: releases it as one that served no caller.
    pub async fn untake(&self, held: &LeaseGrant) -> Result<()> {
        self.release(&unserved(held)).await
    }

    /// Whether a lease is good.
    pub async fn check(&self, held: &LeaseGrant) -> CaseResult<bool> {
        let answers = self
            .index
            .check(&self.session, std::slice::from_ref(held), CALL)
            .await?;
        ensure_eq!(answers.len(), 1, "the number of answers to one check");
        Ok(answers == [true])
    }

    /// Takes a sample out of circulation.
    pub async fn retire(&self, sample: &SampleRef, reason: Reason) -> Result<AckOutcome> {
        let items = std::slice::from_ref(sample);
        only(self.index.retire(&self.session, items, reason, CALL).await)
    }

    /// Another epoch.
    pub async fn reopen(&self, sample: &SampleRef) -> Result<()> {
        let items = std::slice::from_ref(sample);
        only(self.index.reopen(&self.session, items, CALL).await)
    }

    /// The record of a sample, if it is live.
    pub async fn look(&self, sample: &SampleId) -> CaseResult<Option<LiveSample>> {
        let mut views = self.index.look(std::slice::from_ref(sample), CALL).await?;
        ensure_eq!(views.len(), 1, "the number of views of one sample");
        Ok(views.pop().flatten())
    }

    /// The record of a sample that must be live.
    pub async fn record(&self, sample: &SampleRef) -> CaseResult<Live> {
        match self.look(&sample.sample).await? {
            Some(view) if view.sample == *sample => Ok(view.record.record),
            other => Err(Failure::new(format!("{sample:?} should be live; seen was {other:?}"))),
        }
    }

    /// How often a group has taken a sample that must be live.
    pub async fn attempts(&self, sample: &SampleRef, group: &GroupName) -> CaseResult<u32> {
        let record = self.record(sample).await?;
        let state = record.groups.iter().find(|state| state.group == *group);
        let missing = || Failure::new(format!("{group} is not in the record of {sample:?}"));
        Ok(state.ok_or_else(missing)?.attempts)
    }

    /// One sweep.
    pub async fn sweep(&self) -> CaseResult<SweepReport> {
        Ok(self.index.sweep(&self.session, ALL, CALL).await?)
    }

    /// The shared clock.
    pub async fn tick(&self) -> CaseResult<Tick> {
        Ok(self.index.tick(CALL).await?)
    }

    /// The samples that are to be freed.
    pub async fn to_free(&self) -> CaseResult<Vec<FreeTask>> {
        let mut tasks = Vec::new();
        let mut place = None;
        loop {
            let list = self.index.to_free(place.as_ref(), ALL, CALL).await?;
            tasks.extend(list.tasks);
            place = list.next;
            if place.is_none() {
                return Ok(tasks);
            }
        }
    }

    /// Which samples are to be freed, in order of their names.
    pub async fn free_list(&self) -> CaseResult<Vec<SampleRef>> {
        let mut samples: Vec<SampleRef> = self.to_free().await?.into_iter().map(|task| task.sample).collect();
        samples.sort();
        Ok(samples)
    }

    /// Records that a sample's objects are gone.
    pub async fn freed(&self, sample: &SampleRef) -> Result<bool> {
        let items = std::slice::from_ref(sample);
        only(self.index.freed(&self.session, items, CALL).await)
    }
}

/// The description that the suite's producers give a sample.
pub(super) fn description(sample: &SampleRef) -> Vec<u8> {
    format!("about {}@{}", sample.sample, sample.generation).into_bytes()
}

/// The same lease, as one that served no caller.
pub(crate) fn unserved(held: &LeaseGrant) -> LeaseGrant {
    LeaseGrant {
        unserved: true,
        ..held.clone()
    }
}
