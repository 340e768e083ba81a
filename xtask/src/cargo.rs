//! Tasks that are cargo commands with the right arguments: test, bench, prove, load, sim, docs.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::features::last_line;
use crate::privilege::{self, Privilege};

/// Runs cargo in the repository and fails if it does.
fn cargo(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>, environment: &[(&str, &str)]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(crate::repository());
    let status = command
        .status()
        .with_context(|| format!("{command:?} could not be started"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Runs a program of a package, as it is released.
fn run_released<'a>(package: &'a str, arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let run = ["run", "--locked", "--quiet", "--release", "--package", package];
    cargo(run.into_iter().chain(arguments), &[])
}

#[derive(Args)]
pub(crate) struct Test {
    /// Leave out what starts servers: unit tests, property tests and the memory engine only
    #[arg(long)]
    quick: bool,
    /// Passed on to nextest: a filter, `--no-capture`, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn test(options: &Test) -> Result<()> {
    let mut arguments = vec!["nextest", "run", "--locked", "--workspace", "--all-features"];
    let quick;
    if options.quick {
        arguments.extend(["--exclude", "tensorhold-testkit", "--exclude", "xtask"]);
        let real = "((package(tensorhold-engine-mooncake) or package(tensorhold-index-etcd) or package(tensorhold-load)) \
                    and kind(test)) or (package(tensorhold-features) and binary(/real$/))";
        quick = format!("not ({real})");
        arguments.extend(["-E", &quick]);
    }
    arguments.extend(options.rest.iter().map(String::as_str));
    cargo(arguments, &[])?;
    cargo(
        ["test", "--locked", "--doc", "--workspace", "--all-features", "--quiet"],
        &[],
    )
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Subject {
    /// The engine trait against the wheel's own calls
    Engine,
    /// The index against bare etcd transactions of the same shape
    Index,
    /// The feature store from Python, against the bare engine and SpecForge's own store
    Features,
    /// The KV tier, against SGLang's own Mooncake back end; and the planner under load
    Kv,
    /// Prefetches from SSD, by each route, and probes against Mooncake's own
    Prefetch,
    /// The time from the last acknowledgement until the bytes are free, over many runs of `prove ttl --quick`
    Reclaim,
}

#[derive(Args)]
pub(crate) struct Bench {
    /// What to measure
    subject: Subject,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Print nothing but one JSON object, last
    #[arg(long)]
    json: bool,
    /// `reclaim` only: how many runs
    #[arg(long, default_value_t = 50)]
    runs: usize,
    /// Whether the processes have CAP_SYS_NICE; both, if nothing is said
    #[arg(long)]
    privilege: Option<Privilege>,
}

pub(crate) fn bench(options: &Bench) -> Result<()> {
    let subject = options.subject.to_possible_value();
    let subject = subject.context("every subject has a name")?;
    let mut arguments = vec!["bench", subject.get_name()];
    arguments.extend(options.quick.then_some("--quick"));
    arguments.extend(options.json.then_some("--json"));
    let runs = options.runs.to_string();
    arguments.extend(["--runs", &runs]);
    let privilege = Privilege::or_usual(options.privilege)?;
    let figures = privilege::figures(privilege, &arguments, options.json, || figures(options))?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

fn figures(options: &Bench) -> Result<Map<String, Value>> {
    let example = match options.subject {
        Subject::Engine => ["tensorhold-engine-mooncake", "--example", "engine_bench"],
        Subject::Prefetch => ["tensorhold-engine-mooncake", "--example", "prefetch_bench"],
        Subject::Index => ["tensorhold-index-etcd", "--example", "index_bench"],
        Subject::Features => return crate::features::figures(options.quick, options.json),
        Subject::Kv => return crate::kv::figures(options.quick, options.json),
        Subject::Reclaim => return crate::features::reclaim(options.runs),
    };
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["run", "--locked", "--quiet", "--release", "--all-features", "--package"])
        .args(example)
        .arg("--")
        .args(options.json.then_some("--json"))
        .args(options.quick.then_some("--quick"))
        .current_dir(crate::repository());
    let (figures, ended_well) = last_line(&mut command, options.json)?;
    ensure!(ended_well, "{command:?} failed");
    Ok(figures)
}

#[derive(Args)]
pub(crate) struct Prove {
    /// What to show: ttl, torn, crash, backpressure, poison or storm
    proof: String,
    /// Smaller sizes, for CI
    #[arg(long)]
    quick: bool,
    /// Print nothing but one JSON object, last
    #[arg(long)]
    json: bool,
    /// Passed on to the proof: `--without-budget`, …
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn prove(options: &Prove) -> Result<()> {
    if options.proof == "storm" {
        return crate::features::storm(options.quick, options.json, &options.rest);
    }
    let mut arguments = vec!["--all-features", "--example", "feature_proofs", "--", &options.proof];
    arguments.extend(options.quick.then_some("--quick"));
    arguments.extend(options.json.then_some("--json"));
    arguments.extend(options.rest.iter().map(String::as_str));
    run_released("tensorhold-features", arguments)
}

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Load {
    /// Passed on to the load generator, which has a `--help` of its own
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn load(options: &Load) -> Result<()> {
    let rest = options.rest.iter().map(String::as_str);
    run_released("tensorhold-load", std::iter::once("--").chain(rest))
}

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Sim {
    /// Passed on to the simulation, which has a `--help` of its own: `--seeds 1000`, `--minutes 10`, `--first 7`, `--json`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn sim(options: &Sim) -> Result<()> {
    let rest = options.rest.iter().map(String::as_str);
    run_released("tensorhold-sim", ["--", "seeds"].into_iter().chain(rest))
}

pub(crate) fn docs() -> Result<()> {
    let strict = [("RUSTDOCFLAGS", "-D warnings")];
    cargo(
        [
            "doc",
            "--locked",
            "--workspace",
            "--all-features",
            "--no-deps",
            "--quiet",
        ],
        &strict,
    )?;
    println!("the documentation is in {}", crate::target_dir().join("doc").display());
    Ok(())
}
