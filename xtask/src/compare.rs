//! `cargo xtask compare NAME --with REVISION`: is this checkout as fast as another revision?
//! `cargo xtask compare NAME --metrics`: is it as fast with metrics and logging as without?
//!
//! Single runs of a benchmark differ by 0.1 to 0.3 on a small machine, more than most changes are worth. So both
//! revisions run in turns on one machine, each from its own checkout. The result is the median over the pairs of "this
//! checkout / the other revision" for each figure. The order within a pair alternates, so that a machine that slows
//! down or warms up favours neither.
//!
//! ```text
//! pair 1: other, this    pair 2: this, other    pair 3: other, this    …
//! ```
//!
//! With `--metrics` the other side is this checkout with its metrics and its logging switched off: what do they cost?
//!
//! The other revision is checked out under cargo's output folder and stays there, with its build, for the next time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use comfy_table::Table;
use serde_json::{Map, Value};

use crate::features::last_line;
use crate::privilege;

/// Read by the benchmarks, which log nothing then, and by the library.
const METRICS_OFF: (&str, &str) = ("TENSORHOLD_METRICS", "off");

#[derive(Args)]
pub(crate) struct Compare {
    /// What to measure, in its quick form
    subject: Subject,
    /// The revision to compare with
    #[arg(long = "with", value_name = "REVISION", required_unless_present = "metrics")]
    revision: Option<String>,
    /// Compare with this checkout itself, its metrics and logging switched off
    #[arg(long, conflicts_with = "revision")]
    metrics: bool,
    /// How many runs of each side
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Print nothing but one JSON object, last
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Subject {
    /// The engine trait against the wheel's own calls
    Engine,
    /// The index against bare etcd
    Index,
    /// The feature store from Python
    Features,
    /// The KV tier
    Kv,
}

impl Subject {
    /// The quick form of the benchmark, in a form that every revision of this repository understands.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Index => &[
                "run",
                "--quiet",
                "--release",
                "--package=tensorhold-index-etcd",
                "--all-features",
                "--example=index_bench",
                "--",
                "--json",
                "--quick",
            ],
            Self::Engine => &["xtask", "bench", "engine", "--quick", "--json"],
            Self::Features => &["xtask", "bench", "features", "--quick", "--json"],
            Self::Kv => &["xtask", "bench", "kv", "--quick", "--json"],
        }
    }
}

pub(crate) fn run(options: &Compare) -> Result<()> {
    ensure!(options.pairs > 0, "at least one pair has to be run: --pairs 5");
    let (other, off) = match &options.revision {
        Some(revision) => (check_out(revision)?, None),
        None => (crate::repository(), Some(METRICS_OFF)),
    };
    let sides = [(other, off), (crate::repository(), None)];
    let names = [
        options.revision.as_deref().unwrap_or("without metrics and logging"),
        "this checkout",
    ];
    let mut runs: [Vec<Map<String, Value>>; 2] = Default::default();
    for pair in 0..options.pairs {
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            eprintln!("compare: pair {} of {}: {}", pair + 1, options.pairs, names[side]);
            let (checkout, setting) = &sides[side];
            runs[side].push(bench(checkout, options.subject, *setting)?);
        }
    }
    let [theirs, ours] = runs;
    let figures = judge(&theirs, &ours);
    ensure!(!figures.is_empty(), "the two revisions have no figure in common");
    if !options.json {
        let mut table = Table::new();
        table.set_header(["figure", names[0], names[1], "ratio", "from", "to"]);
        for figure in &figures {
            let cells = [figure.theirs, figure.ours, figure.ratio, figure.low, figure.high];
            table.add_row(std::iter::once(figure.name.clone()).chain(cells.map(|cell| format!("{cell:.3}"))));
        }
        println!(
            "{table}\nA ratio above 1 means that this checkout is better; medians over {} pairs.",
            options.pairs
        );
    }
    let line: Map<String, Value> = figures
        .iter()
        .map(|figure| (figure.name.clone(), round(figure.ratio).into()))
        .collect();
    println!("{}", serde_json::to_string(&line)?);
    Ok(())
}

/// A checkout of another revision, with this one's environment.
fn check_out(revision: &str) -> Result<PathBuf> {
    let commit = git(&["rev-parse", "--verify", &format!("{revision}^{{commit}}")])?;
    let folder = crate::target_dir()
        .join("compare")
        .join(commit.get(..12).unwrap_or(&commit));
    if !folder.join("Cargo.toml").exists() {
        let place = folder
            .to_str()
            .context("the output folder has a name that is not text")?;
        git(&["worktree", "add", "--force", "--detach", place, &commit])?;
    }
    for link in [".venv", ".etcd"] {
        if !folder.join(link).exists() {
            let environment = std::fs::canonicalize(crate::repository().join(link))
                .with_context(|| format!("{link} is missing; has .ci/setup been run?"))?;
            std::os::unix::fs::symlink(environment, folder.join(link))?;
        }
    }
    Ok(folder)
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(crate::repository())
        .stderr(Stdio::inherit())
        .output()
        .context("git could not be started")?;
    ensure!(
        output.status.success(),
        "git {} ended with {}",
        arguments.join(" "),
        output.status
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// One run. Each checkout builds into its own folder, so that neither rebuilds the other's crates.
fn bench(checkout: &Path, subject: Subject, setting: Option<(&str, &str)>) -> Result<Map<String, Value>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(subject.arguments()).envs(setting).current_dir(checkout);
    // Once: what is compared are two revisions, not two privileges.
    command.env(privilege::VARIABLE, privilege::of_this_process()?);
    // The variables that cargo set for this program refer to this checkout.
    for name in [
        "CARGO_TARGET_DIR",
        "TENSORHOLD_VENV",
        "TENSORHOLD_ETCD_BIN",
        "PYO3_PYTHON",
        "CARGO_MANIFEST_DIR",
    ] {
        command.env_remove(name);
    }
    let (figures, ended_well) = last_line(&mut command, true)?;
    if !ended_well {
        bail!("the benchmark failed in {}", checkout.display());
    }
    Ok(figures)
}

#[derive(Debug, PartialEq)]
struct Figure {
    name: String,
    theirs: f64,
    ours: f64,
    /// The median over the pairs; above 1 is better.
    ratio: f64,
    low: f64,
    high: f64,
}

/// Whether more of a figure is better; `None` if it is neither better nor worse. The processor time of a ratio is a ratio
/// of the same direction; its interval belongs to its own run.
fn more_is_better(name: &str) -> Option<bool> {
    if let Some(ratio) = name.strip_suffix("_cpu").or(name.strip_suffix("_cpu_servers")) {
        return more_is_better(ratio);
    }
    let any = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if ["_low", "_high", "_rounds"].iter().any(|end| name.ends_with(end)) || any(&["_bare", "_of_", "torn", "holds"]) {
        None
    } else if any(&["_ms", "_us", "fairness", "growth", "bytes_per", "cpu", "specforge_loop"]) {
        Some(false)
    } else if any(&["ratio", "vs_", "per_s", "throughput", "pipelined"]) {
        Some(true)
    } else {
        None
    }
}

fn judge(theirs: &[Map<String, Value>], ours: &[Map<String, Value>]) -> Vec<Figure> {
    let Some(first) = ours.first() else {
        return Vec::new();
    };
    let mut figures = Vec::new();
    for name in first.keys() {
        let Some(more) = more_is_better(name) else {
            continue;
        };
        let of = |runs: &[Map<String, Value>]| -> Vec<f64> {
            runs.iter().filter_map(|run| run.get(name)?.as_f64()).collect()
        };
        let (theirs_of, ours_of) = (of(theirs), of(ours));
        if theirs_of.len() != theirs.len() || ours_of.len() != ours.len() {
            continue;
        }
        let pairs = theirs_of.iter().zip(&ours_of);
        let ratios: Vec<f64> = pairs.map(|(a, b)| if more { b / a } else { a / b }).collect();
        figures.push(Figure {
            name: name.clone(),
            theirs: median(theirs_of),
            ours: median(ours_of),
            low: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            high: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ratio: median(ratios),
        });
    }
    figures
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => figures[middle],
        _ => f64::midpoint(figures[middle - 1], figures[middle]),
    }
}

fn round(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(figures: &[(&str, f64)]) -> Map<String, Value> {
        figures
            .iter()
            .map(|(name, figure)| ((*name).to_owned(), (*figure).into()))
            .collect()
    }

    #[test]
    fn a_ratio_above_one_means_better_whatever_the_figure_counts() {
        let theirs = [
            run(&[("put_ratio", 0.5), ("p50_ms", 2.0)]),
            run(&[("put_ratio", 1.0), ("p50_ms", 2.0)]),
        ];
        let ours = [
            run(&[("put_ratio", 1.0), ("p50_ms", 1.0)]),
            run(&[("put_ratio", 1.0), ("p50_ms", 4.0)]),
        ];
        let figures = judge(&theirs, &ours);
        let ratios: Vec<_> = figures
            .iter()
            .map(|f| (f.name.as_str(), f.low, f.ratio, f.high))
            .collect();
        assert_eq!(ratios, [("p50_ms", 0.5, 1.25, 2.0), ("put_ratio", 1.0, 1.5, 2.0)]);
    }

    #[test]
    fn processor_time_follows_its_ratio_and_an_interval_is_not_compared() {
        assert_eq!(more_is_better("put_ratio_4m_cpu"), Some(true));
        assert_eq!(more_is_better("specforge_loop_get_cpu_servers"), Some(false));
        assert_eq!(more_is_better("cpu_4m_us"), Some(false));
        assert_eq!(more_is_better("batched_ratio_low"), None);
    }

    #[test]
    fn what_only_one_side_has_or_what_is_neither_good_nor_bad_is_left_out() {
        let theirs = [run(&[("old_ratio", 1.0), ("torn_reads", 0.0), ("rounds", 3.0)])];
        let ours = [run(&[("new_ratio", 1.0), ("torn_reads", 0.0), ("rounds", 3.0)])];
        assert_eq!(judge(&theirs, &ours), []);
    }
}
