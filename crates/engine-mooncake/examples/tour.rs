//! A short tour of the engine on the cluster that `cargo xtask cluster up` started: a put, probes, a get and a remove.
#![allow(clippy::print_stdout, reason = "a tour talks")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tensorhold_core::{Generation, Nonce, SampleKey, SystemRng};
use tensorhold_engine::{Engine, EngineExt, PutOptions};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_testkit::DetachedCluster;

fn main() -> Result<()> {
    let within = Duration::from_secs(10);
    let state = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tensorhold-cluster"));
    let cluster = DetachedCluster::load(&state)?.context("no cluster is up; run `cargo xtask cluster up` first")?;
    let endpoints = cluster
        .endpoints
        .context("the cluster did not come up whole; take it down and up again")?;
    let mut settings = MooncakeConfig {
        master: endpoints.master,
        metadata: endpoints.metadata,
        admin: endpoints.admin,
        ..MooncakeConfig::default()
    };
    settings.environment.extend(endpoints.client_env);
    settings
        .environment
        .insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    let engine = MooncakeEngine::connect(settings)?;
    println!("connected: {:?}", engine.capabilities());

    let key = SampleKey {
        store: "tour".parse()?,
        sample: "sample/1".parse()?,
        generation: Generation::new(1).context("generations start at 1")?,
        nonce: Nonce::draw(&SystemRng),
        tensor: "hidden_state".parse()?,
    }
    .to_object_key();
    let memory = engine.allocate(4 << 20, within)?;
    memory.whole().write(0, b"what a trainer waits for")?;

    println!(
        "put    {key}: {:?}",
        engine.put_one(&key, &memory.whole(), &PutOptions::default(), within)?
    );
    println!("probe  {:?}", engine.probe_one(&key, within)?);
    println!("usage  {:?}", engine.usage(within)?);

    let copy = engine.allocate(4 << 20, within)?;
    println!("get    {:?}", engine.get_one(&key, &copy.whole(), within)?);
    println!("same bytes: {}", copy.whole().to_vec() == memory.whole().to_vec());

    println!(
        "remove {:?}, although a reader's lease is still running",
        engine.remove_one(&key, within)?
    );
    println!("probe  {:?}", engine.probe_one(&key, within)?);
    Ok(())
}
