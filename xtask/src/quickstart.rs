//! The README's first five minutes, as they are printed: a fresh virtual environment, the wheel, a cluster, the first
//! example, a look at it, and its end. Says how long each line took.
//!
//! The block is the one that has `holdfast up` in it. It runs in one shell, from the repository's root, with a folder of its
//! own for what `up` records, so that a cluster that is up already is left alone. Whatever fails, `down` is run.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use holdfast_core::{Clock as _, SystemClock};
use serde::Serialize;

use crate::readme::blocks;

/// What it may take, as promised.
const MOST_SECONDS: u64 = 300;
/// What the shell prints before it runs a line.
const MARK: &str = "@quickstart-line ";
/// The folder of the environment in the README's lines.
const ENVIRONMENT: &str = "target/quickstart";

#[derive(Args)]
pub(crate) struct Quickstart {
    /// Print one line of JSON last: the seconds in all, and of each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is printed with `--json`.
#[derive(Serialize)]
struct Report<'a> {
    seconds: f64,
    lines: Vec<Took<'a>>,
}

#[derive(Serialize)]
struct Took<'a> {
    line: &'a str,
    seconds: f64,
}

pub(crate) fn run(options: &Quickstart) -> Result<()> {
    let readme = crate::repository().join("README.md");
    let text = std::fs::read_to_string(&readme).with_context(|| format!("{} cannot be read", readme.display()))?;
    let lines = lines_of(&text)?;
    let environment = crate::repository().join(ENVIRONMENT);
    if environment.exists() {
        std::fs::remove_dir_all(&environment).with_context(|| format!("{} is in the way", environment.display()))?;
    }
    let state = tempfile::tempdir().context("no folder for what `holdfast up` records")?;
    let mut script = String::from("set -euo pipefail\n");
    script
        .push_str("ended=0; trap 'if [ $ended = 0 ] && command -v holdfast >/dev/null; then holdfast down; fi' EXIT\n");
    for (number, line) in lines.iter().enumerate() {
        script.push_str(&format!("echo '{MARK}{number}'\n{line}\n"));
    }
    script.push_str("ended=1\n");

    let clock = SystemClock::new();
    let begun = clock.now();
    let mut shell = Command::new("timeout")
        .args(["--kill-after=30", &MOST_SECONDS.to_string(), "bash", "-c", &script])
        .current_dir(crate::repository())
        .env("XDG_STATE_HOME", state.path())
        // Those of another cluster would be used instead.
        .envs([("MC_LOG_LEVEL", "ERROR"), ("PIP_DISABLE_PIP_VERSION_CHECK", "1")])
        .env_remove("HOLDFAST_ETCD")
        .env_remove("HOLDFAST_MASTER")
        .env_remove("HOLDFAST_ADMIN")
        .env_remove("PYTHONPATH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("timeout (coreutils) could not be started")?;
    let mut starts: Vec<f64> = Vec::new();
    for line in BufReader::new(shell.stdout.take().context("the shell has no output")?).lines() {
        let line = line.context("the shell's output cannot be read")?;
        match line.strip_prefix(MARK).and_then(|number| number.parse::<usize>().ok()) {
            Some(number) => {
                starts.push(clock.now().since(begun).as_secs_f64());
                eprintln!("$ {}", lines.get(number).map_or("", String::as_str));
            }
            None => eprintln!("{line}"),
        }
    }
    let status = shell.wait().context("the shell")?;
    let seconds = clock.now().since(begun).as_secs_f64();
    ensure!(
        status.success() && starts.len() == lines.len(),
        "the README's first five minutes ended with {status} after {seconds:.0} s, in line {}",
        starts.len()
    );
    let ends = starts.iter().skip(1).copied().chain([seconds]);
    let took: Vec<(&String, f64)> = lines
        .iter()
        .zip(starts.iter().zip(ends).map(|(start, end)| end - start))
        .collect();
    if options.json {
        let lines = took.iter().map(|(line, seconds)| Took {
            line,
            seconds: rounded(*seconds),
        });
        let report = Report {
            seconds: rounded(seconds),
            lines: lines.collect(),
        };
        println!("{}", serde_json::to_string(&report).context("no JSON")?);
    } else {
        for (line, seconds) in &took {
            println!("{seconds:7.1} s  {line}");
        }
        println!("{seconds:7.1} s  in all");
    }
    Ok(())
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

/// The lines to type.
fn lines_of(readme: &str) -> Result<Vec<String>> {
    let block = blocks(readme, "sh")
        .into_iter()
        .find(|block| block.contains("holdfast up"));
    let block = block.context("the README has no block marked sh that has `holdfast up` in it")?;
    let lines = block.lines().map(str::to_owned).filter(|line| !line.trim().is_empty());
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_has_the_lines_that_were_promised() {
        let text = std::fs::read_to_string(crate::repository().join("README.md")).expect("a README");
        let lines = super::lines_of(&text).expect("a block").join("\n");
        for part in [
            super::ENVIRONMENT,
            "pip install",
            "holdfast up",
            "first.py",
            "holdfast why",
            "holdfast down",
        ] {
            assert!(lines.contains(part), "{part} is missing in\n{lines}");
        }
    }
}
