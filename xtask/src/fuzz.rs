//! `cargo xtask fuzz`: runs libFuzzer on every decoder of foreign bytes (`fuzz/`), two at a time.
//!
//! It needs the stable toolchain and nothing that is not in the lock file: the instrumentation is the compiler's own
//! (LLVM's SanitizerCoverage, by stable flags), and libFuzzer comes with its crate.
//!
//! | folder | what | written by |
//! |---|---|---|
//! | `fuzz/corpus/<target>` | seeds, and inputs that reached something new | people; `--keep` |
//! | `fuzz/regressions/<target>` | inputs that once crashed | people |
//! | `target/fuzz/corpus/<target>` | inputs that this machine's runs have found | every run |
//! | `target/fuzz/crashes/<target>` | inputs that crash | every run |

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::instrumented::Instrumented;

/// The flags that cargo-fuzz passes, too. All of them are stable.
const FLAGS: &[&str] = &[
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];
const PROFILE: &str = "fuzz";

#[derive(Args)]
pub(crate) struct Fuzz {
    /// One target; all of them if none is named
    target: Option<String>,
    /// How long each target is fuzzed
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Build only
    #[arg(long)]
    no_run: bool,
    /// Afterwards, add to the corpora in the repository the few inputs that reach what theirs do not
    #[arg(long)]
    keep: bool,
    /// Progress on standard error, and one JSON object on standard output, last
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome {
    target: String,
    /// Inputs that were tried.
    executions: u64,
    /// Places in the code that some input reached, as libFuzzer counts them.
    coverage: u64,
    /// The input that crashed it.
    crash: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report<'a> {
    targets: &'a [Outcome],
}

struct Running {
    target: String,
    process: Child,
    log: PathBuf,
}

pub(crate) fn run(options: &Fuzz) -> Result<()> {
    let build = Instrumented::new("fuzz", FLAGS)?;
    let targets = targets(options.target.as_deref())?;
    ensure!(options.jobs > 0, "at least one target is fuzzed at a time: --jobs 1");
    eprintln!("building with coverage instrumentation");
    let mut cargo = build.cargo(&[
        "build",
        "--quiet",
        "--package",
        "tensorhold-fuzz",
        "--bin",
        "tensorhold-fuzz",
    ]);
    let status = cargo.args(["--profile", PROFILE]).status()?;
    ensure!(status.success(), "{cargo:?} ended with {status}");
    if options.no_run {
        return Ok(());
    }
    let program = build.programs(PROFILE).join("tensorhold-fuzz");

    let mut outcomes = Vec::new();
    for some in targets.chunks(options.jobs) {
        let running: Vec<Running> = some
            .iter()
            .map(|target| start(&build, &program, target, options.seconds))
            .collect::<Result<_>>()?;
        for one in running {
            let outcome = finish(&build, one)?;
            eprintln!(
                "{}: {} executions, coverage {}{}",
                outcome.target,
                outcome.executions,
                outcome.coverage,
                if outcome.crash.is_some() { ", CRASHED" } else { "" }
            );
            outcomes.push(outcome);
        }
    }
    if options.keep {
        for target in &targets {
            keep(&build, &program, target)?;
        }
    }
    if options.json {
        let report = Report { targets: &outcomes };
        println!("{}", serde_json::to_string(&report)?);
    }
    let crashed: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| Some((outcome, outcome.crash.as_ref()?)))
        .collect();
    for (outcome, input) in &crashed {
        eprintln!(
            "{name} crashed; see it again with TENSORHOLD_FUZZ_TARGET={name} {} {}\n  then mend it, and copy the input to \
             fuzz/regressions/{name}",
            program.display(),
            input.display(),
            name = outcome.target
        );
    }
    ensure!(
        crashed.is_empty(),
        "{} of {} targets crashed",
        crashed.len(),
        outcomes.len()
    );
    Ok(())
}

/// The targets are the folders of the corpora; a test checks that the two agree.
fn targets(named: Option<&str>) -> Result<Vec<String>> {
    let folder = crate::repository().join("fuzz/corpus");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        all.push(entry?.file_name().to_string_lossy().into_owned());
    }
    all.sort();
    match named {
        None => Ok(all),
        Some(name) if all.iter().any(|target| target == name) => Ok(vec![name.to_owned()]),
        Some(name) => bail!("there is no target {name}; there are: {}", all.join(", ")),
    }
}

fn made(folder: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(folder)
}

fn start(build: &Instrumented, program: &Path, target: &str, seconds: u64) -> Result<Running> {
    let found = made(build.folder().join("corpus").join(target))?;
    let crashes = made(build.folder().join("crashes").join(target))?;
    let log = build.folder().join(format!("{target}.log"));
    let in_repository = crate::repository().join("fuzz");
    let mut command = Command::new(program);
    command
        .env("TENSORHOLD_FUZZ_TARGET", target)
        .arg(format!("-max_total_time={seconds}"))
        .args([
            "-print_final_stats=1",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-max_len=16384",
        ])
        .arg(format!("-dict={}", in_repository.join("words.dict").display()))
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .arg(found)
        .arg(in_repository.join("corpus").join(target))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).with_context(|| format!("{} cannot be written", log.display()))?);
    let regressions = in_repository.join("regressions").join(target);
    if regressions.is_dir() {
        command.arg(regressions);
    }
    let process = command
        .spawn()
        .with_context(|| format!("{command:?} could not be started"))?;
    Ok(Running {
        target: target.to_owned(),
        process,
        log,
    })
}

fn finish(build: &Instrumented, mut running: Running) -> Result<Outcome> {
    let status = running.process.wait()?;
    let bytes = std::fs::read(&running.log).with_context(|| format!("{} cannot be read", running.log.display()))?;
    let log = String::from_utf8_lossy(&bytes);
    let number = |label: &str| -> u64 {
        let line = log.lines().rev().find_map(|line| line.split_once(label));
        let word = line.and_then(|(_, rest)| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let mut outcome = Outcome {
        executions: number("stat::number_of_executed_units:"),
        coverage: number(" cov: "),
        target: running.target,
        crash: None,
    };
    if !status.success() {
        let said = log
            .lines()
            .rev()
            .find_map(|line| line.split_once("Test unit written to "));
        let Some((_, input)) = said else {
            bail!(
                "the fuzzer of {} ended with {status}; it says why in {}",
                outcome.target,
                running.log.display()
            );
        };
        outcome.crash = Some(
            build
                .folder()
                .join("crashes")
                .join(&outcome.target)
                .join(Path::new(input.trim()).file_name().unwrap_or_default()),
        );
        let panic = log.lines().skip_while(|line| !line.contains("panicked at")).take(6);
        eprintln!("{}", panic.collect::<Vec<_>>().join("\n"));
    }
    Ok(outcome)
}

/// Adds to the repository's corpus the fewest inputs that cover everything ever reached here.
fn keep(build: &Instrumented, program: &Path, target: &str) -> Result<()> {
    let corpus = made(crate::repository().join("fuzz/corpus").join(target))?;
    let status = Command::new(program)
        .env("TENSORHOLD_FUZZ_TARGET", target)
        // By places reached, not by how often, so that the corpus stays small.
        .args(["-set_cover_merge=1", "-use_counters=0", "-max_len=1024"])
        .arg(corpus)
        .arg(build.folder().join("corpus").join(target))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "merging the corpus of {target} ended with {status}");
    Ok(())
}
