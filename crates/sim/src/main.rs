//! `tensorhold-sim`: the feature store and its index in a simulated world, seed after seed.
//!
//! The real crates `tensorhold-custody`, `tensorhold-index` and `tensorhold-features` run here, several processes of them, over
//! etcd and Mooncake in memory (`tensorhold_index::store::memory`, `tensorhold_engine::memory`), with a bad network in
//! between. Everything follows from the seed: time, randomness, faults, the order in which processes run. So a seed that
//! shows something wrong shows it again, with `--trace` in a readable form. docs/adr/0019-simulation.md says why it is made
//! so.
//!
//! | module | what |
//! |---|---|
//! | [`world`] | processes, time, and what goes wrong by itself |
//! | [`etcd`], [`mooncake`] | the network in front of them, and what goes wrong on it |
//! | [`faults`] | what can go wrong, and how often it did |
//! | [`work`] | what processes do |
//! | [`judge`] | what must hold |
//! | [`run`] | the run of one seed |
//! | [`entropy`] | the operating system's randomness |
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program talks to people and scripts: results on standard output, progress on standard error"
)]

mod entropy;
mod etcd;
mod faults;
mod judge;
mod mooncake;
mod run;
mod seeds;
mod work;
mod world;

use clap::{Args, Parser};

/// The feature store and its index in a simulated world
#[derive(Parser)]
enum Command {
    /// Runs seeds, each in a process of its own; the last line is a summary in JSON
    Seeds(Seeds),
    /// Runs one seed in this process, and prints what it showed as JSON
    One {
        /// The seed
        seed: u64,
        /// Everything that happens, on standard error
        #[arg(long)]
        trace: bool,
    },
}

#[derive(Args)]
struct Seeds {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// The most seeds
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The most minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// How many at once; as many as there are processors if it is not given
    #[arg(long)]
    jobs: Option<usize>,
    /// No more than the summary on standard output
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Seeds(options) => seeds::run(&options),
        Command::One { seed, trace } => {
            entropy::set(seed);
            println!("{}", serde_json::to_string(&run::run(seed, trace)?)?);
            Ok(())
        }
    }
}
