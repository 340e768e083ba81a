//! The README's first five minutes, as they are printed: a fresh virtual environment, the wheel, a cluster, the first
//! example, a look at it, and its end. Says how long each line took.
//!
//! The block is the one that has `tensorhold up` in it. It runs in one shell, from the repository's root, with a folder of its
//! own for what `up` records, so that a cluster that is up already is left alone. Whatever fails, `down` is run.
//! `cargo xtask fresh --wheel` types the same lines in a bare Debian root.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock as _, SystemClock};

use crate::readme::blocks;

/// What it may take, as promised.
const MOST_SECONDS: u64 = 300;
/// The folder of the environment in the README's lines.
const ENVIRONMENT: &str = "target/quickstart";
/// What the shell does before the first line, and after each.
const SHELL: &str = r#"set -euo pipefail
took_file=$1 all_typed=false
trap 'if ! $all_typed && command -v tensorhold >/dev/null; then tensorhold down; fi' EXIT
took() {
    local tenths=$(((${EPOCHREALTIME/[.,]/} - began) / 100000))
    local seconds=$((tenths / 10)).$((tenths % 10))
    printf '{"command":%s,"seconds":%s}\n' "$1" "$seconds" >>"$took_file"
    printf '(%s s)\n\n' "$seconds"
    began=${EPOCHREALTIME/[.,]/}
}
began=${EPOCHREALTIME/[.,]/}
"#;

#[derive(Args)]
pub(crate) struct Quickstart {
    /// Print one line of JSON last: the seconds in all, and of each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is printed with `--json`.
#[derive(Serialize)]
struct Report {
    typed: Vec<Typed>,
    total_seconds: f64,
}

/// A line that has ended.
#[derive(Serialize, Deserialize)]
struct Typed {
    command: String,
    seconds: f64,
}

pub(crate) fn run(options: &Quickstart) -> Result<()> {
    let lines = lines_of(&crate::readme::text()?)?;
    let environment = crate::repository().join(ENVIRONMENT);
    if environment.exists() {
        std::fs::remove_dir_all(&environment).with_context(|| format!("{} is in the way", environment.display()))?;
    }
    let state = tempfile::tempdir().context("no folder for what `tensorhold up` records")?;
    let took = state.path().join("took");
    std::fs::write(&took, "").with_context(|| format!("{} cannot be written", took.display()))?;

    let clock = SystemClock::new();
    let begun = clock.now();
    let status = Command::new("timeout")
        .args(["--kill-after=30", &MOST_SECONDS.to_string()])
        .args(["bash", "-c", &script(&lines)?, "bash"])
        .arg(&took)
        .current_dir(crate::repository())
        .env("XDG_STATE_HOME", state.path())
        // Those of another cluster would be used instead.
        .envs([("MC_LOG_LEVEL", "ERROR"), ("PIP_DISABLE_PIP_VERSION_CHECK", "1")])
        .env_remove("TENSORHOLD_ETCD")
        .env_remove("TENSORHOLD_MASTER")
        .env_remove("TENSORHOLD_ADMIN")
        .env_remove("PYTHONPATH")
        .stdin(Stdio::null())
        .stdout(Stdio::from(std::io::stderr()))
        .status()
        .context("timeout (coreutils) could not be started")?;
    let seconds = clock.now().since(begun).as_secs_f64();
    let typed = std::fs::read_to_string(&took).with_context(|| format!("{} cannot be read", took.display()))?;
    let typed: Vec<Typed> = typed
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .with_context(|| format!("the shell wrote {typed:?}"))?;
    ensure!(
        status.success() && typed.len() == lines.len(),
        "the README's first five minutes ended with {status} after {seconds:.0} s, in: {}",
        lines.get(typed.len()).map_or("", String::as_str)
    );
    let report = Report {
        typed,
        total_seconds: (seconds * 10.0).round() / 10.0,
    };
    if options.json {
        println!("{}", serde_json::to_string(&report).context("no JSON")?);
    } else {
        for Typed { command, seconds } in &report.typed {
            println!("{seconds:7.1} s  {command}");
        }
        println!("{:7.1} s  in all", report.total_seconds);
    }
    Ok(())
}

/// A bash script that runs the lines in one shell, and ends with the first that fails. For each that has ended it appends an
/// object of JSON, a [`Typed`], to the file that its argument names.
pub(crate) fn script(lines: &[String]) -> Result<String> {
    let mut script = String::from(SHELL);
    for line in lines {
        let json = serde_json::to_string(line).context("no JSON")?;
        script.push_str(&format!(
            "printf '$ %s\\n' {}\n{line}\ntook {}\n",
            quoted(line),
            quoted(&json)
        ));
    }
    script.push_str("all_typed=true\n");
    Ok(script)
}

/// As one word of a shell's command.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The lines to type.
pub(crate) fn lines_of(readme: &str) -> Result<Vec<String>> {
    let block = blocks(readme, "sh")
        .into_iter()
        .find(|block| block.contains("tensorhold up"));
    let block = block.context("the README has no block marked sh that has `tensorhold up` in it")?;
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
            "tensorhold up",
            "first.py",
            "tensorhold why",
            "tensorhold down",
        ] {
            assert!(lines.contains(part), "{part} is missing in\n{lines}");
        }
    }

    #[test]
    fn each_line_that_ends_is_told_and_the_first_that_fails_ends_the_script() {
        let folder = tempfile::tempdir().expect("a folder");
        let took = folder.path().join("took");
        let lines = [
            r#"word="it's \"it\""  # …"#,
            r#"test "$word" = "it's \"it\"""#,
            "false",
            "true",
        ]
        .map(str::to_owned);
        let script = super::script(&lines).expect("a script");
        let shell = std::process::Command::new("bash")
            .args(["-c", &script, "bash"])
            .arg(&took)
            // What fails is followed by `tensorhold down`, which must find no cluster.
            .env("XDG_STATE_HOME", folder.path())
            .output()
            .expect("bash");
        assert_eq!(shell.status.code(), Some(1), "{shell:?}");
        let typed = std::fs::read_to_string(&took).expect("what was typed");
        let typed = typed
            .lines()
            .map(|row| serde_json::from_str::<super::Typed>(row).expect("JSON").command);
        assert_eq!(typed.collect::<Vec<_>>(), lines[..2]);
    }
}
