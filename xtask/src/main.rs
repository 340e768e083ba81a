//! `cargo xtask …`: the front door of the repository.
//!
//! Each subcommand is a module with a clap `Args` or `Subcommand` type and a function `run`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program talks to people and scripts: results on standard output, progress on standard error"
)]

mod api;
mod cargo;
mod cluster;
mod compare;
mod crates;
mod features;
mod fresh;
mod fuzz;
mod instrumented;
mod kv;
mod names;
mod privilege;
mod quickstart;
mod readme;
mod real;
mod sanitize;
mod topology;
mod wheel;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The front door of the repository"
)]
enum Task {
    /// A real Mooncake cluster on this machine, to try things by hand
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Unit tests, contract suites and tests on real servers, then the examples in the documentation
    Test(cargo::Test),
    /// Whether the public API of the published crates is what their golden files say
    Api(api::Api),
    /// A benchmark side by side with the bare engine, bare etcd, or another store
    Bench(cargo::Bench),
    /// A benchmark here and at another revision, in turns: is this checkout as fast?
    Compare(compare::Compare),
    /// A proof of what the feature store promises, on real servers: ttl, torn, crash, backpressure, storm
    Prove(cargo::Prove),
    /// Samples that arrive at a fixed rate, on a real etcd: latencies, what a sample costs, whether anything is lost
    Load(cargo::Load),
    /// The feature store in a simulated world, seed after seed: everything that can go wrong, and the same again
    Sim(cargo::Sim),
    /// Packs the crates that can be published, as they would be; sends nothing
    Crates(crates::Crates),
    /// Whether what our hints tell a user to install is ours, or what we mean; asks the registries
    Names(names::Names),
    /// The documentation of all crates, warnings denied
    Docs,
    /// Runs the README's commands as they are printed
    Readme,
    /// The README's first five minutes, as printed, in a fresh virtual environment with the wheel; says how long they take
    Quickstart(quickstart::Quickstart),
    /// A framework itself, on a CPU, with Tensorhold in place
    Real(real::Real),
    /// Sets up, builds and quickly tests HEAD in a bare Debian root (needs root; half an hour, 20 GB); or tries the wheel in one
    Fresh(fresh::Fresh),
    /// Fuzzes every decoder of foreign bytes, guided by coverage
    Fuzz(fuzz::Fuzz),
    /// The tests over the memory engine, under AddressSanitizer
    Sanitize(sanitize::Sanitize),
    /// The services of deploy/compose on this machine, without containers; three of them are killed under an example
    Topology(topology::Topology),
    /// The wheel as it is released, for every machine with glibc 2.28 or later; says what is in it
    Wheel(wheel::Wheel),
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Cluster(command) => cluster::run(command),
        Task::Test(options) => cargo::test(&options),
        Task::Api(options) => api::run(&options),
        Task::Bench(options) => cargo::bench(&options),
        Task::Compare(options) => compare::run(&options),
        Task::Prove(options) => cargo::prove(&options),
        Task::Load(options) => cargo::load(&options),
        Task::Sim(options) => cargo::sim(&options),
        Task::Crates(options) => crates::run(&options),
        Task::Names(options) => names::run(&options),
        Task::Docs => cargo::docs(),
        Task::Readme => readme::run(),
        Task::Quickstart(options) => quickstart::run(&options),
        Task::Real(options) => real::run(&options),
        Task::Fresh(options) => fresh::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Sanitize(options) => sanitize::run(&options),
        Task::Topology(options) => topology::run(&options),
        Task::Wheel(options) => wheel::run(&options),
    }
}

/// The repository's root.
fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Cargo's output folder, for files that a task keeps between two runs.
fn target_dir() -> PathBuf {
    let from_environment = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    from_environment.unwrap_or_else(|| repository().join("target"))
}
