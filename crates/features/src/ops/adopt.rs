//! Samples whose objects another program writes: a serving engine, with keys of its own choosing.
//!
//! ```text
//!            announce (keys, bytes)            they write              adopt
//! (nothing) ────────────────────────▶ Reserved ──────────▶ Reserved ─────────▶ Live, as any other
//!                                        │ discard; dropped unseen; this process or its session dies; the time runs out
//!                                        ▼
//!                                     the objects are removed
//! ```
//! The announcement comes first, so that nothing stays behind if either the writer or this process crashes.
//! [`FeatureStore::adopt_now`] is for objects that exist already.
//!
//! An announcement that is dropped before its holder has looked at it is given back at once, as a lease is: the caller
//! left, or does not know what was announced, so nothing can be adopted by it. Once the holder has looked at it, a
//! writer may be at work, and dropping it does nothing: the objects of that writer are removed after the reservation
//! has ended.
//!
//! Ownership of objects (module `ownership`): announcing claims every key for this sample, in the transaction that
//! reserves it. A key that another generation has claimed is refused (`Conflict`). So:
//! - *adopted twice* (a retry, a reply that was lost): the second call finds the first one's claims, and the sample
//!   live with the same description; that is the same adoption. With another description it is refused, and nothing is
//!   removed.
//! - *refused*: everything that can be wrong with an adoption is checked before it is announced. A later failure
//!   removes objects by the reservation's own claims, and so no objects of another sample.
//!
//! A sealed store refuses all of this (`Unsupported`): objects of other writers are not sealed.
//!
//! The keys must never be written again: an engine reports a second put of a key as done and keeps the first bytes.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tensorhold_core::{
    Deadline, Digest, Error, ErrorKind, Nonce, ObjectKey, Result, Retry, SampleId, TensorSpec, Timestamp,
};
use tensorhold_custody::Publication;
use tensorhold_engine::Presence;
use tensorhold_index::{Commit, Reserve, SampleRef, Session};

use crate::io::sealed::refuse_foreign;
use crate::ops::commit::Committed;
use crate::ops::put::Stored;
use crate::reclaim::queue::{Job, ReclaimQueue};
use crate::record::description::{DescribedTensor, Description};
use crate::record::plan::{Plan, check_names};
use crate::runtime::tasks::Caller;
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.adopt";

/// A sample that another program is about to write.
#[derive(Clone, Debug)]
pub struct Announcement {
    /// Its id.
    pub sample: SampleId,
    /// Every object that may be written for it.
    pub keys: Vec<ObjectKey>,
    /// The most bytes that they will have in total.
    pub bytes: u64,
}

/// A tensor that another program has written as one object.
#[derive(Clone, Debug)]
pub struct AdoptedTensor {
    /// Its name, element type and shape.
    pub spec: TensorSpec,
    /// The object that holds its bytes.
    pub key: ObjectKey,
    /// The checksum of its bytes, if the writer computed one. Without it a get checks only length and lease.
    pub digest: Option<Digest>,
}

/// A sample that is announced: reserved for this process until it is adopted, discarded, or its time runs out. A clone
/// is the same announcement.
///
/// Look at it (ask for its reference or its keys) before the writer is told to write: an announcement that its holder
/// has not looked at is given back when the last clone is dropped.
#[derive(Clone)]
pub struct Announced(Arc<Reservation>);

struct Reservation {
    reference: SampleRef,
    keys: Vec<ObjectKey>,
    session: Arc<Session>,
    /// Whether its holder has looked at it, or it is used. Until then no caller knows what was announced.
    seen: AtomicBool,
    frees: Arc<ReclaimQueue>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !*self.seen.get_mut() && self.session.is_alive() {
            self.frees.push(self.to_discard());
        }
    }
}

impl Reservation {
    /// Gives the reservation up, then removes its objects.
    fn to_discard(&self) -> Job {
        Job {
            sample: self.reference.clone(),
            keys: self.keys.clone(),
            abort: Some(Arc::clone(&self.session)),
            put: None,
        }
    }
}

impl fmt::Debug for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SampleRef { sample, generation } = &self.0.reference;
        write!(f, "Announced({sample}, generation {generation})")
    }
}

impl Announced {
    fn look(&self) -> &Reservation {
        self.0.seen.store(true, Ordering::Release);
        &self.0
    }

    /// The incarnation that it will become.
    pub fn reference(&self) -> &SampleRef {
        &self.look().reference
    }

    /// The objects that it may consist of.
    pub fn keys(&self) -> &[ObjectKey] {
        &self.look().keys
    }
}

impl Inner {
    /// Waits for quota until the caller leaves, or the store closes.
    async fn announce(&self, announcement: Announcement, caller: &Caller, deadline: Deadline) -> Result<Announced> {
        refuse_foreign(self.io.seals.as_ref(), OPERATION)?;
        let mut keys = announcement.keys;
        let mut named = HashSet::new();
        keys.retain(|key| named.insert(key.clone()));
        if keys.is_empty() {
            return Err(Error::invalid(OPERATION, "name the objects that will be written"));
        }
        keys.iter()
            .try_for_each(|key| self.runtime.config.refuse_key(OPERATION, key))?;
        let wish = [Reserve {
            sample: announcement.sample.clone(),
            nonce: Nonce::draw(&*self.runtime.rng),
            bytes: announcement.bytes,
            plan: Plan::of_keys(keys.clone()).to_text()?,
            claims: keys.clone(),
        }];
        for last in [false, true] {
            let session = self.runtime.sessions.current(OPERATION, deadline).await?;
            let left = self.runtime.left(deadline);
            let mut answers = self
                .runtime
                .index
                .reserve_unless(&session, &wish, caller.token(), left)
                .await;
            match answers.pop() {
                Some(Ok(generation)) => {
                    let sample = announcement.sample;
                    return Ok(Announced(Arc::new(Reservation {
                        reference: SampleRef { sample, generation },
                        keys,
                        session,
                        seen: AtomicBool::new(false),
                        frees: Arc::clone(&self.reclaim.queue),
                    })));
                }
                Some(Err(error)) if !last && self.runtime.sessions.refused(&session, &error) => {}
                // The wait for quota has ended because the store closes.
                Some(Err(error)) if error.kind() == ErrorKind::Capacity => {
                    return Err(caller.store_is_open(OPERATION).err().unwrap_or(error));
                }
                Some(Err(error)) => return Err(error),
                None => break,
            }
        }
        Err(Error::internal(OPERATION, "the index returned no answer (a bug)"))
    }

    async fn adopt(
        &self,
        announced: &Reservation,
        tensors: Vec<AdoptedTensor>,
        publication: Publication,
        deadline: Deadline,
    ) -> Result<Stored> {
        check_names(OPERATION, tensors.iter().map(|tensor| tensor.spec.name()))?;
        if let Some(stranger) = tensors.iter().find(|tensor| !announced.keys.contains(&tensor.key)) {
            return Err(Error::invalid(
                OPERATION,
                "a tensor's object was not announced, so no process would remove it after a crash; announce every key",
            )
            .with("tensor", &stranger.spec)
            .with("key", &stranger.key));
        }
        self.check_objects(&tensors, deadline).await?;
        self.commit_adopted(announced, described(tensors), publication, deadline)
            .await
    }

    async fn commit_adopted(
        &self,
        announced: &Reservation,
        description: Description,
        publication: Publication,
        deadline: Deadline,
    ) -> Result<Stored> {
        let commit = [Commit {
            becomes: None,
            sample: announced.reference.clone(),
            publication,
            description: description.to_bytes()?,
        }];
        match self.commit(&announced.session, &commit, deadline).await.pop() {
            Some(Committed::Yes {
                version,
                may_have_replaced,
            }) => {
                self.runtime.count.puts.one();
                self.runtime.count.bytes_put.add(description.bytes());
                if may_have_replaced {
                    self.reclaim.queue.collect_soon();
                }
                Ok(Stored {
                    reference: announced.reference.clone(),
                    version,
                    description: Arc::new(description),
                })
            }
            // An earlier call may have committed it, and its reply was lost.
            Some(Committed::No(error)) if error.kind() == ErrorKind::Fenced => {
                match self
                    .adopted_before(&announced.reference.sample, &description, deadline)
                    .await?
                {
                    Some(stored) if stored.reference == announced.reference => Ok(stored),
                    _ => Err(error),
                }
            }
            Some(Committed::No(error) | Committed::Unknown(error)) => Err(error),
            Some(Committed::GivenUp(error)) => {
                self.reclaim.free_soon(announced.to_discard());
                Err(error.with_retry(Retry::Never).with("announced", "no longer"))
            }
            None => Err(Error::internal(OPERATION, "the index returned no answer (a bug)")),
        }
    }

    /// Adopts objects that exist already.
    async fn adopt_now(
        &self,
        sample: SampleId,
        tensors: Vec<AdoptedTensor>,
        publication: Publication,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Stored> {
        refuse_foreign(self.io.seals.as_ref(), OPERATION)?;
        check_names(OPERATION, tensors.iter().map(|tensor| tensor.spec.name()))?;
        publication.check(OPERATION)?;
        let keys: Vec<ObjectKey> = tensors.iter().map(|tensor| tensor.key.clone()).collect();
        keys.iter()
            .try_for_each(|key| self.runtime.config.refuse_key(OPERATION, key))?;
        self.check_objects(&tensors, deadline).await?;
        let bytes = tensors
            .iter()
            .fold(0, |sum, tensor| tensor.spec.bytes().saturating_add(sum));
        let description = described(tensors);
        let announcement = Announcement {
            sample: sample.clone(),
            keys,
            bytes,
        };
        let announced = match self.announce(announcement, caller, deadline).await {
            // These very objects may be in custody already.
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let before = self.adopted_before(&sample, &description, deadline).await?;
                return before.ok_or(error);
            }
            announced => announced?,
        };
        // From here on it may be committed.
        let announced = announced.look();
        let adopted = self.commit_adopted(announced, description, publication, deadline).await;
        if let Err(error) = &adopted
            && error.retry() != Retry::Ambiguous
        {
            self.reclaim.free_soon(announced.to_discard());
        }
        adopted
    }

    /// Ends the step of an adoption, for traces.
    fn adopt_ended(&self, started: Option<Timestamp>, adopted: Result<Stored>) -> Result<Stored> {
        if let Ok(stored) = &adopted {
            let nonce = stored.description.nonce;
            self.runtime
                .step_ended("adopt", started, &stored.reference, nonce, None);
        }
        adopted
    }

    /// The live sample, if it consists of these objects with this description. `Conflict` if it has one of the objects
    /// and another description.
    async fn adopted_before(
        &self,
        sample: &SampleId,
        wanted: &Description,
        deadline: Deadline,
    ) -> Result<Option<Stored>> {
        let left = self.runtime.left(deadline);
        let mut views = self.runtime.index.look(std::slice::from_ref(sample), left).await?;
        let Some(view) = views.pop().flatten() else {
            return Ok(None);
        };
        let Ok(live) = Description::from_bytes(&view.description) else {
            return Ok(None);
        };
        if live == *wanted {
            return Ok(Some(Stored {
                reference: view.sample,
                version: view.record.version,
                description: Arc::new(live),
            }));
        }
        let names = |description: &Description| -> HashSet<ObjectKey> {
            description
                .tensors()
                .iter()
                .filter_map(|tensor| tensor.key.clone())
                .collect()
        };
        match names(&live).intersection(&names(wanted)).next() {
            None => Ok(None),
            Some(key) => Err(Error::new(
                ErrorKind::Conflict,
                OPERATION,
                "this sample is live, consists of these objects, and has another description; they stay as they are. \
                 To describe them anew, have them written again under other keys",
            )
            .with_retry(Retry::Never)
            .with("sample", sample)
            .with("generation", view.sample.generation)
            .with("key", key)),
        }
    }

    /// Refuses objects that do not exist or are not as long as their tensors, as far as the engine can say.
    async fn check_objects(&self, tensors: &[AdoptedTensor], deadline: Deadline) -> Result<()> {
        if !self.runtime.engine.capabilities().probe {
            return Ok(());
        }
        let there: Vec<&AdoptedTensor> = tensors.iter().filter(|tensor| tensor.spec.bytes() > 0).collect();
        for batch in there.chunks(self.runtime.max_batch()) {
            let keys: Vec<ObjectKey> = batch.iter().map(|tensor| tensor.key.clone()).collect();
            let engine = Arc::clone(&self.runtime.engine);
            let call = move |within| engine.probe(&keys, within);
            let found = self.runtime.blocking.run(OPERATION, deadline, call).await?;
            for (tensor, presence) in batch.iter().zip(found) {
                check_object(tensor, presence)?;
            }
        }
        Ok(())
    }
}

fn described(tensors: Vec<AdoptedTensor>) -> Description {
    let described = |tensor: AdoptedTensor| DescribedTensor {
        digests: tensor.digest.filter(|_| tensor.spec.bytes() > 0).into_iter().collect(),
        spec: tensor.spec,
        key: Some(tensor.key),
    };
    Description::adopted(tensors.into_iter().map(described).collect())
}

fn check_object(tensor: &AdoptedTensor, presence: Presence) -> Result<()> {
    let error = match presence {
        Presence::Present { bytes, .. } if bytes == tensor.spec.bytes() => return Ok(()),
        Presence::Present { bytes, .. } => Error::invalid(
            OPERATION,
            "an object is not as long as its tensor; check shape and element type",
        )
        .with("object_bytes", bytes),
        Presence::Unfinished => Error::new(
            ErrorKind::Unavailable,
            OPERATION,
            "an object is still being written; adopt the sample when its writer is done",
        ),
        Presence::Absent => Error::new(
            ErrorKind::NotFound,
            OPERATION,
            "an object to adopt does not exist; check its key, or adopt the sample after its writer is done",
        ),
    };
    Err(error.with("tensor", &tensor.spec).with("key", &tensor.key))
}

impl FeatureStore {
    /// Reserves a sample that another program is about to write, so that its objects are removed if it is never
    /// adopted. `Denied`: a key is not one that this store may own. `Conflict`: another sample, or an earlier
    /// generation that is not freed yet, has one of the objects; or another producer writes this sample. If the caller
    /// leaves, the reservation is given back.
    pub async fn announce(&self, announcement: Announcement, within: Duration) -> Result<Announced> {
        self.run_for("features.announce", |inner, caller| async move {
            inner.announce(announcement, &caller, inner.deadline(within)).await
        })
        .await
    }

    /// Commits an announced sample whose objects are written: from now on it is like any other. After an error it is
    /// still announced, unless the error says `announced=no longer`: then its objects are removed.
    pub async fn adopt(
        &self,
        announced: &Announced,
        tensors: Vec<AdoptedTensor>,
        publication: Publication,
        within: Duration,
    ) -> Result<Stored> {
        let announced = announced.clone();
        self.run(OPERATION, |inner| async move {
            let started = inner.runtime.step_begins();
            let adopted = inner
                .adopt(announced.look(), tensors, publication, inner.deadline(within))
                .await;
            inner.adopt_ended(started, adopted)
        })
        .await
    }

    /// Adopts objects that exist already. If it fails before they are taken into custody (they do not exist, another
    /// sample has them, another producer writes this sample), they stay; if it fails after that, they are removed. It
    /// is idempotent: with the same objects it returns the live sample. If the caller leaves while it waits for quota,
    /// it is not made.
    pub async fn adopt_now(
        &self,
        sample: SampleId,
        tensors: Vec<AdoptedTensor>,
        publication: Publication,
        within: Duration,
    ) -> Result<Stored> {
        self.run_for(OPERATION, |inner, caller| async move {
            let started = inner.runtime.step_begins();
            let adopted = inner
                .adopt_now(sample, tensors, publication, &caller, inner.deadline(within))
                .await;
            inner.adopt_ended(started, adopted)
        })
        .await
    }

    /// Gives up an announced sample: its objects are removed in the background. The writer must have stopped.
    pub async fn discard(&self, announced: &Announced, within: Duration) -> Result<()> {
        let announced = announced.clone();
        self.run("features.discard", |inner| async move {
            let announced = announced.look();
            let samples = std::slice::from_ref(&announced.reference);
            let mut answers = inner.runtime.index.abort(&announced.session, samples, within).await;
            answers
                .pop()
                .unwrap_or_else(|| Err(Error::internal("features.discard", "the index returned no answer")))?;
            inner.reclaim.free_soon(Job {
                abort: None,
                ..announced.to_discard()
            });
            Ok(())
        })
        .await
    }
}
