//! Getting tensors: exactly the committed bytes, or an error.
//!
//! ```text
//! memory (pool, or the caller's) ─▶ bytes move, checksums follow ─▶ the lease still holds? ─▶ lengths, checksums ─▶ tensors
//!                                     │ renewed at half its time         │ no                    │ differ
//!                                     ▼                                  ▼                       ▼
//!                                   missing, and the lease holds:      Fenced                  Corrupt
//!                                   the sample is Lost, and retired
//! ```
//!
//! In a sealed store objects arrive in a stage, and opening them takes the place of the checksums (module `sealed`).
//!
//! The question about the lease comes after the last byte has moved. If the answer is yes, the objects were not removed
//! while they were read; if it is no, whatever else was seen (a miss, torn bytes) means nothing, so it is not reported.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, ObjectKey, Result, TensorName};
use holdfast_custody::Reason;
use holdfast_engine::Span;
use tokio::sync::mpsc;

use crate::description::{DescribedTensor, Description};
use crate::fetch::{Check, Incoming, Trouble};
use crate::lease::Lease;
use crate::pieces::{cut, wipe};
use crate::plan::{Place, check_names};
use crate::seal::SampleOpener;
use crate::sealed::{SealedRun, opener, run_of};
use crate::store::{FeatureStore, Inner};
use crate::tensors::{Destination, Source, TensorOut, Wanted, check_length};

const OPERATION: &str = "features.get";

impl Inner {
    pub(crate) async fn get(&self, lease: &Lease, wanted: Wanted, deadline: Deadline) -> Result<Vec<TensorOut>> {
        let description = Arc::clone(lease.description());
        let reference = lease.reference();
        let place = Place {
            store: &self.config.store,
            sample: &reference,
        };
        let opener = opener(self.seals.as_ref(), &self.config.store, &reference, &description)?;
        let mut tensors = Vec::new();
        let mut objects = Vec::new();
        for (tensor, destination) in choose(&description, wanted)? {
            let parts = self.memory_for(tensor, destination, deadline).await?;
            let keys = description.keys_of(tensor, place)?;
            let chunks = cut(&parts, description.chunk_bytes())?;
            let checks = checks(tensor, &description, opener.as_ref(), keys.len())?;
            for ((key, parts), check) in keys.into_iter().zip(chunks).zip(checks) {
                objects.push(Incoming { key, parts, check });
            }
            tensors.push(TensorOut {
                spec: tensor.spec.clone(),
                parts,
            });
        }
        let arrived = self.arrive(lease, objects, deadline).await;
        if arrived.is_err() && opener.is_some() {
            self.clear(&tensors).await;
        }
        arrived?;
        self.count.gets.one();
        self.count
            .bytes_got
            .add(tensors.iter().map(|tensor| tensor.spec.bytes()).sum());
        Ok(tensors)
    }

    /// Fetches objects and asks whether the lease still holds.
    async fn arrive(&self, lease: &Lease, objects: Vec<Incoming>, deadline: Deadline) -> Result<()> {
        let reference = lease.reference();
        let (moving, mut moved) = mpsc::channel(1);
        let fetch = self.fetch(objects, moving, deadline);
        let check = async {
            self.until_moved(lease, &mut moved, deadline).await;
            self.checks.ask(lease.session(), &lease.held(), deadline).await
        };
        let (fetched, good) = tokio::join!(fetch, check);
        if !good? {
            self.count.fenced.one();
            return Err(no_longer_held(lease));
        }
        match fetched {
            Ok(()) => Ok(()),
            Err(Trouble::Missing(key)) => Err(self.lost(lease, &key).await),
            Err(Trouble::Corrupt(error)) => {
                self.count.corrupt.one();
                Err(error.with("sample", &reference.sample))
            }
            Err(Trouble::Failed(error)) => Err(error.with("sample", &reference.sample)),
        }
    }

    /// Clears the memory of tensors that are not handed out (SS3 in module `sealed`). Nobody writes there any more: what
    /// the engine may still write is a stage.
    async fn clear(&self, tensors: &[TensorOut]) {
        let parts: Vec<Span> = tensors.iter().flat_map(|tensor| tensor.parts.clone()).collect();
        let again = parts.clone();
        let deadline = self.deadline(self.config.call_within);
        let cleared = self.calls.run(OPERATION, deadline, move |_| wipe(&parts)).await;
        if cleared.is_err()
            && let Err(error) = wipe(&again)
        {
            tracing::error!(%error, "memory of a failed get was not cleared");
        }
    }

    async fn memory_for(
        &self,
        tensor: &DescribedTensor,
        destination: Destination,
        deadline: Deadline,
    ) -> Result<Vec<Span>> {
        let bytes = tensor.spec.bytes();
        let source = match destination {
            Destination::Pool if bytes == 0 => return Ok(Vec::new()),
            Destination::Pool => {
                let len = usize::try_from(bytes)
                    .map_err(|_| Error::invalid(OPERATION, "this tensor is larger than an address space"))?;
                return Ok(vec![self.pool.take(len, deadline).await?]);
            }
            Destination::Spans(spans) => Source::Spans(spans),
            Destination::Lent(memory) => Source::Lent(memory),
        };
        check_length(OPERATION, &tensor.spec, source.bytes())?;
        self.registered(source, deadline).await
    }

    /// Waits until all bytes have moved, and renews the lease whenever half of it has passed.
    async fn until_moved(
        &self,
        lease: &Lease,
        moved: &mut mpsc::Receiver<std::convert::Infallible>,
        deadline: Deadline,
    ) {
        let half = self.config.lease_time() / 2;
        while let Err(_elapsed) = tokio::time::timeout(half, moved.recv()).await {
            for renewed in self.renew(std::slice::from_ref(lease), deadline).await {
                if let Err(error) = renewed {
                    // Whether it still holds is asked at the end.
                    tracing::debug!(%error, "a lease was not renewed during a transfer");
                }
            }
        }
    }

    /// An object is gone although the lease holds: nobody will ever read the sample again.
    async fn lost(&self, lease: &Lease, key: &ObjectKey) -> Error {
        let reference = lease.reference();
        tracing::error!(sample = %reference.sample, %key, "a committed object is gone from the engine");
        self.count.lost.one();
        let deadline = self.deadline(self.config.call_within);
        let retired = match self.sessions.current(OPERATION, deadline).await {
            Ok(session) => {
                let samples = std::slice::from_ref(&reference);
                let left = deadline.remaining(&*self.clock);
                self.index.retire(&session, samples, Reason::Lost, left).await
            }
            Err(error) => vec![Err(error)],
        };
        for answer in retired {
            match answer {
                Ok(answer) => self.after_answer(&reference, lease.description(), answer),
                Err(error) => tracing::warn!(%error, "a lost sample was not retired; its next reader will"),
            }
        }
        Error::new(
            ErrorKind::NotFound,
            OPERATION,
            "the sample's bytes are gone from the engine (a holder died, or the cluster was restarted); put it again",
        )
        .with("reason", "lost")
        .with("sample", &reference.sample)
        .with("generation", reference.generation)
        .with("key", key)
    }
}

/// How each object of a tensor is checked.
fn checks(
    tensor: &DescribedTensor,
    description: &Description,
    opener: Option<&SampleOpener>,
    objects: usize,
) -> Result<Vec<Check>> {
    let Some(opener) = opener else {
        let recorded = |at| tensor.digests.get(at).copied().map_or(Check::Nothing, Check::Digest);
        return Ok((0..objects).map(recorded).collect());
    };
    let with = Arc::new(opener.tensor(tensor.spec.name(), tensor.spec.bytes())?);
    let sealed = |at| {
        let run = run_of(with.layout(), description.chunk_bytes(), at)?;
        let with = Arc::clone(&with);
        Ok(Check::Seal(SealedRun { with, run }))
    };
    (0..objects).map(sealed).collect()
}

fn no_longer_held(lease: &Lease) -> Error {
    let reference = lease.reference();
    Error::new(
        ErrorKind::Fenced,
        OPERATION,
        "the lease no longer holds: the sample was retired or replaced, or the lease or its session ended; take it again",
    )
    .with("sample", &reference.sample)
    .with("generation", reference.generation)
    .with("token", lease.token())
}

/// The tensors that are wanted, and where they go.
fn choose(description: &Description, wanted: Wanted) -> Result<Vec<(&DescribedTensor, Destination)>> {
    let named: Vec<(TensorName, Destination)> = match wanted {
        Wanted::All => {
            let all = description.tensors().iter();
            return Ok(all.map(|tensor| (tensor, Destination::Pool)).collect());
        }
        Wanted::Names(names) => names.into_iter().map(|name| (name, Destination::Pool)).collect(),
        Wanted::Into(named) => named,
    };
    check_names(OPERATION, named.iter().map(|(name, _)| name))?;
    let find = |(name, destination): (TensorName, Destination)| {
        let tensor = description.tensor(&name).ok_or_else(|| {
            let there: Vec<&str> = description.tensors().iter().map(|t| t.spec.name().as_str()).collect();
            Error::new(ErrorKind::NotFound, OPERATION, "the sample has no tensor of this name")
                .with("tensor", &name)
                .with("tensors", there.join(", "))
        })?;
        Ok((tensor, destination))
    };
    named.into_iter().map(find).collect()
}

impl FeatureStore {
    /// Gets tensors of a sample that this process holds a lease on: exactly the committed bytes, or an error and no bytes.
    ///
    /// `Fenced`: the lease does not hold any more. `NotFound` with the fact `reason=lost`: the engine has lost the bytes.
    /// `Corrupt`: what arrived is not what was committed. `Unavailable`: the engine or the index did not answer; the
    /// lease is as it was. `Denied`: the sample is sealed with a key that this store was not opened with. `Unsupported`:
    /// this store has a key, and the sample is not sealed.
    pub async fn get(&self, lease: &Lease, wanted: Wanted, within: Duration) -> Result<Vec<TensorOut>> {
        let lease = lease.clone();
        self.run(OPERATION, |inner| async move {
            inner.get(&lease, wanted, inner.deadline(within)).await
        })
        .await
    }
}
