//! Takes the samples of the producer, sums them up, and acknowledges them, which frees them.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use tensorhold_example::{SAMPLES, WITHIN, ended, open, trainers};
use tensorhold_features::{TensorOut, Wanted};

#[tokio::main]
async fn main() -> ExitCode {
    ended(consume().await)
}

async fn consume() -> Result<()> {
    let store = open("consumer").await?;
    let mut total = 0.0;
    let mut taken = 0;
    while taken < SAMPLES {
        let leases = store.lease_next(&trainers()?, 4, WITHIN).await?;
        ensure!(!leases.is_empty(), "no sample came in time; run the producer first");
        for lease in &leases {
            let tensors = store.get(lease, Wanted::All, WITHIN).await?;
            total += mean(tensors.first().context("a sample has one tensor")?);
            taken += 1;
        }
        // The answers of a batch travel together. Without one, a lease goes back to the group when it is dropped.
        for answer in store.ack(&leases, WITHIN).await {
            answer?;
        }
    }
    println!("took and acknowledged {taken} samples, the sum of their means is {total}");
    store.drain(WITHIN).await?;
    let ids = (0..SAMPLES)
        .map(|n| format!("sample-{n}").parse())
        .collect::<Result<Vec<_>, _>>()?;
    let left = store.find(&ids, WITHIN).await?.into_iter().flatten().count();
    println!("their bytes are gone, samples left: {left}");
    store.close(WITHIN).await?;
    Ok(())
}

/// The mean of a tensor of `f32`.
fn mean(tensor: &TensorOut) -> f32 {
    let bytes = tensor.to_vec();
    let (values, _) = bytes.as_chunks::<4>();
    let sum: f32 = values.iter().map(|value| f32::from_ne_bytes(*value)).sum();
    sum / tensor.spec.shape().iter().map(|n| *n as f32).product::<f32>()
}
