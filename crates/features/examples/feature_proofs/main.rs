//! The proofs of the feature store, at their real size, on a real master, separate holder processes and a real etcd.
//!
//! `cargo xtask prove NAME [--quick] [--json]` runs one. It prints a table of claims, and one line of JSON last; it fails
//! if a claim does not hold. Progress goes to standard error.
//!
//! | name | what is shown |
//! |---|---|
//! | `ttl` | samples come and go as fast as they are used, whatever the engine's own protection of what was read |
//! | `torn` | no get returns torn, stale or resurrected bytes |
//! | `crash` | producers and consumers are killed at every point; nothing is lost, nothing is left |
//! | `backpressure` | producers that are too fast wait their turn, and nothing fails |
//! | `poison` | one bad record harms one record |
//!
//! Producers and consumers are processes of their own: this program, started again with a task in its environment
//! (module `worker`). What they did is in their journals, which the conductor reads and judges.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program talks to people and scripts"
)]

mod aftermath;
mod backpressure;
mod beside;
mod crash;
mod crew;
mod doom;
mod gauge;
mod gone;
mod hooked_engine;
mod hooked_index;
mod hooks;
mod journal;
mod pattern;
mod poison;
mod report;
mod rewrite;
mod torn;
mod ttl;
mod worker;
mod world;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Proof {
    /// The life of a sample has nothing to do with the engine's read leases
    Ttl,
    /// No get returns torn, stale or resurrected bytes
    Torn,
    /// Producers and consumers are killed at every point; nothing is lost, nothing is left
    Crash,
    /// Producers that are too fast wait their turn
    Backpressure,
    /// Records that cannot be read, or not yet, harm nothing but themselves
    Poison,
}

#[derive(Parser)]
#[command(about = "The proofs of the feature store, on real servers")]
struct Options {
    /// What to show
    proof: Proof,
    /// Smaller sizes, for CI
    #[arg(long)]
    quick: bool,
    /// `crash` only: give the store no budget. Then reservations are made ahead: `after reserve` dies after these, and
    /// `before commit` between taking one and its commit
    #[arg(long)]
    without_budget: bool,
    /// `ttl` only: not on SpecForge's own store, too
    #[arg(long)]
    alone: bool,
    /// Print nothing but one JSON object, last
    #[arg(long)]
    json: bool,
}

fn main() -> Result<ExitCode> {
    if let Ok(task) = std::env::var(worker::TASK) {
        return worker::main(&task).map(|()| ExitCode::SUCCESS);
    }
    let options = Options::parse();
    let report = match options.proof {
        Proof::Ttl => ttl::run(options.quick, options.alone)?,
        Proof::Torn => torn::run(options.quick)?,
        Proof::Crash => crash::run(options.quick, !options.without_budget)?,
        Proof::Backpressure => backpressure::run(options.quick)?,
        Proof::Poison => poison::run(options.quick)?,
    };
    report.print(options.json, options.quick)?;
    Ok(if report.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
