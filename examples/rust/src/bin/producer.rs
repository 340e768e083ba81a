//! Puts samples for the group `trainers`, and ends. They stay.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::process::ExitCode;

use anyhow::Result;
use tensorhold_example::{SAMPLES, WITHIN, ended, hidden, open, trainers};
use tensorhold_features::{Publication, PutItem, TensorIn};

#[tokio::main]
async fn main() -> ExitCode {
    ended(produce().await)
}

async fn produce() -> Result<()> {
    let store = open("producer").await?;
    let spec = hidden()?;
    for n in 0..SAMPLES {
        // Memory of the store's pool is registered with the engine already: putting it needs only the transfer.
        let memory = store.pool().buffer(usize::try_from(spec.bytes())?, WITHIN).await?;
        let row: Vec<u8> = f32::from(n).to_ne_bytes().repeat(memory.len() / size_of::<f32>());
        memory.write(0, &row)?;
        let publication = Publication {
            groups: vec![trainers()?],
            retain: false,
            max_attempts: 3,
        };
        let item = PutItem {
            sample: format!("sample-{n}").parse()?,
            tensors: vec![TensorIn::new(spec.clone(), memory)],
            publication,
        };
        let stored = store.put(item, WITHIN).await?;
        println!("put {} with {spec}", stored.reference.sample);
    }
    store.close(WITHIN).await?;
    println!("the producer ends, {SAMPLES} samples stay");
    Ok(())
}
