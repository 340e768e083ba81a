//! The workers of the second proof: one puts a sample again and again, others read it.
//!
//! The sample's first tensor carries the seed of the other one. A reader finds out the seed from the bytes it got, checks
//! the large tensor against it, and writes both down; the conductor compares them with what was committed for that
//! generation. So torn bytes are found here, and bytes that are whole but of another generation there.

use std::time::Duration;

use anyhow::{Context, Result};
use tensorhold_core::{DType, ErrorKind, Rng, SampleId, SystemRng, TensorName, TensorSpec};
use tensorhold_features::{Lease, PutItem, SampleRef, TensorIn, TensorOut, Wanted};
use tokio::task::block_in_place;

use crate::journal::{Event, Which};
use crate::pattern;
use crate::worker::{Worker, up_to};
use crate::world::{WITHIN, publication};

/// Puts the sample with a new seed.
pub(crate) async fn put_once(worker: &Worker, sample: &SampleId, len: usize) -> Result<()> {
    let seed = SystemRng.next_u64();
    let said = worker.store.pool().buffer(8, WITHIN).await?;
    said.write(0, &seed.to_le_bytes())?;
    let data = worker.store.pool().buffer(len, WITHIN).await?;
    block_in_place(|| pattern::fill(&data, seed))?;
    let spec = |name: &str, len: usize| TensorSpec::new(TensorName::new(name)?, DType::Uint8, [len as u64]);
    let item = PutItem {
        sample: sample.clone(),
        tensors: vec![
            TensorIn::new(spec("seed", 8)?, said),
            TensorIn::new(spec("data", len)?, data),
        ],
        publication: publication()?,
    };
    match worker.store.put(item, WITHIN).await {
        Ok(stored) => worker.note(&Event::Committed {
            which: (&stored.reference).into(),
            seed,
        }),
        Err(error) => worker.note(&Event::NotPut {
            sample: sample.to_string(),
            why: error.to_string(),
        }),
    }
    Ok(())
}

pub(crate) async fn write(worker: &Worker, sample: &SampleId, len: usize) -> Result<()> {
    while !worker.stopped() {
        put_once(worker, sample, len).await?;
        tokio::time::sleep(up_to(120)).await;
        // Two of three are aborted, one is taken the place of.
        if SystemRng.below(3) > 0 {
            for aborted in worker.store.abort(std::slice::from_ref(sample), WITHIN).await {
                match aborted {
                    Ok(()) => worker.note(&Event::Aborted {
                        sample: sample.to_string(),
                    }),
                    Err(error) => worker.note(&Event::Trouble { why: error.to_string() }),
                }
            }
            tokio::time::sleep(up_to(20)).await;
        }
    }
    Ok(())
}

/// The seed that the tensors carry, and whether the data are its bytes.
pub(crate) fn seed_and_data(tensors: &[TensorOut]) -> Result<(u64, bool)> {
    let [said, data] = tensors else {
        anyhow::bail!("two tensors were put, and {} came back", tensors.len());
    };
    let bytes = said.to_vec();
    let seed = u64::from_le_bytes(bytes.as_slice().try_into().context("a seed has eight bytes")?);
    let part = data.parts.first().context("the data have no bytes")?;
    let right = block_in_place(|| pattern::holds(part, seed))?;
    Ok((seed, right && part.len() as u64 == data.spec.bytes()))
}

/// Reads the sample again and again: under a lease, and without one, in turns.
pub(crate) async fn read(worker: &Worker, sample: &SampleId) -> Result<()> {
    let mut held = false;
    while !worker.stopped() {
        held = !held;
        let Ok(glimpse) = worker.store.find_live(sample, None, WITHIN).await else {
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        };
        let reference = glimpse.reference().clone();
        let got = if held {
            let Some(lease) = take(worker, &reference).await else {
                continue;
            };
            let got = worker.store.get(&lease, Wanted::All, WITHIN).await;
            worker.store.release(&[lease], WITHIN).await;
            got
        } else {
            worker.store.get_unleased(glimpse, Wanted::All, WITHIN).await
        };
        let which = Which::from(&reference);
        match got {
            Ok(tensors) => {
                let (seed, right) = seed_and_data(&tensors)?;
                worker.note(&Event::Got { which, seed, right });
            }
            Err(error) => worker.hooks.journal.not_got(which, &error),
        }
    }
    Ok(())
}

/// A lease for reading, unless the sample was aborted or replaced since it was seen.
async fn take(worker: &Worker, reference: &SampleRef) -> Option<Lease> {
    let leases = worker.store.lease_shared(std::slice::from_ref(reference), WITHIN).await;
    match leases.into_iter().next()? {
        Ok(lease) => Some(lease),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced) => None,
        Err(error) => {
            worker.note(&Event::Trouble { why: error.to_string() });
            None
        }
    }
}
