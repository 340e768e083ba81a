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
//! The question about the lease comes after the last byte has moved. If the answer is yes, the objects were not removed
//! while they were read; if it is no, whatever else was seen (a miss, torn bytes) means nothing, so it is not reported.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, ObjectKey, Result, TensorName};
use holdfast_custody::Reason;
use holdfast_engine::Span;
use tokio::sync::mpsc;

use crate::description::{DescribedTensor, Description};
use crate::lease::Lease;
use crate::pieces::cut;
use crate::plan::{Place, check_names};
use crate::store::{FeatureStore, Inner};
use crate::tensors::{Destination, Source, TensorOut, Wanted, check_length};
use crate::transfer::{Incoming, Trouble};

const OPERATION: &str = "features.get";

impl Inner {
    pub(crate) async fn get(&self, lease: &Lease, wanted: Wanted, deadline: Deadline) -> Result<Vec<TensorOut>> {
        let description = Arc::clone(lease.description());
        let reference = lease.reference();
        let place = Place {
            store: &self.config.store,
            sample: &reference,
        };
        let mut tensors = Vec::new();
        let mut objects = Vec::new();
        for (tensor, destination) in choose(&description, wanted)? {
            let parts = self.memory_for(tensor, destination, deadline).await?;
            let keys = description.keys_of(tensor, place)?;
            let chunks = cut(&parts, description.chunk_bytes())?;
            for (at, (key, parts)) in keys.into_iter().zip(chunks).enumerate() {
                objects.push(Incoming {
                    key,
                    parts,
                    recorded: tensor.digests.get(at).copied(),
                });
            }
            tensors.push(TensorOut {
                spec: tensor.spec.clone(),
                parts,
            });
        }
        let (moving, mut moved) = mpsc::channel(1);
        let fetch = self.fetch(objects, &description.encoding, moving, deadline);
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
            Ok(()) => {}
            Err(Trouble::Missing(key)) => return Err(self.lost(lease, &key).await),
            Err(Trouble::Corrupt(error)) => {
                self.count.corrupt.one();
                return Err(error.with("sample", &reference.sample));
            }
            Err(Trouble::Failed(error)) => return Err(error.with("sample", &reference.sample)),
        }
        self.count.gets.one();
        self.count
            .bytes_got
            .add(tensors.iter().map(|tensor| tensor.spec.bytes()).sum());
        Ok(tensors)
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
    /// lease is as it was.
    pub async fn get(&self, lease: &Lease, wanted: Wanted, within: Duration) -> Result<Vec<TensorOut>> {
        let lease = lease.clone();
        self.run(OPERATION, |inner| async move {
            inner.get(&lease, wanted, inner.deadline(within)).await
        })
        .await
    }
}
