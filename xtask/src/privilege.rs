//! Benchmarks with and without `CAP_SYS_NICE`.
//!
//! With that capability threads that wait for a transfer run behind all others; without it they compete with the transfer
//! (`crates/engine-mooncake/src/idle_wait.rs`). Containers usually do not have it, and a root shell does. So a benchmark
//! runs twice, the second time as a child of `setpriv`, which takes the capability away, and what that run tells is in
//! `without_sys_nice`.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::features::last_line;

/// The capability's bit in a set of capabilities.
const CAP_SYS_NICE: u32 = 23;

/// Says how to run when no `--privilege` is given: `cargo xtask compare` sets it for all revisions, and those that do not
/// know it run once anyway.
pub(crate) const VARIABLE: &str = "TENSORHOLD_BENCH_PRIVILEGE";

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Privilege {
    /// With the capability
    With,
    /// Without it; the figures are in `without_sys_nice`
    Without,
    /// With it, and then without it
    Both,
    /// In this process, which must not have it
    #[value(hide = true)]
    Gone,
}

impl Privilege {
    /// What is given, or else the variable, or else both.
    pub(crate) fn or_usual(given: Option<Self>) -> Result<Self> {
        match (given, std::env::var(VARIABLE)) {
            (Some(given), _) => Ok(given),
            (None, Ok(name)) => Self::from_str(&name, false).map_err(|error| anyhow::anyhow!("{VARIABLE}: {error}")),
            (None, Err(_)) => Ok(Self::Both),
        }
    }
}

/// How to measure once, with what this process has.
pub(crate) fn of_this_process() -> Result<&'static str> {
    Ok(if children_hold_it()? { "with" } else { "gone" })
}

/// Measures as often as `privilege` says. `arguments` are those of this program, for the run without the capability.
pub(crate) fn figures(
    privilege: Privilege,
    arguments: &[&str],
    json: bool,
    measure: impl Fn() -> Result<Map<String, Value>>,
) -> Result<Map<String, Value>> {
    let held = children_hold_it()?;
    match privilege {
        Privilege::Gone => {
            ensure!(
                !held,
                "a program started by this process still has CAP_SYS_NICE: setpriv did not take it away"
            );
            let limits = std::fs::read_to_string("/proc/self/limits")?;
            ensure!(
                nice_limit(&limits) == Some(0),
                "the limit of nice priorities stands in for CAP_SYS_NICE: run `ulimit -e 0` first"
            );
            measure()
        }
        Privilege::With => {
            ensure!(held, "this process has no CAP_SYS_NICE: use --privilege without");
            measure()
        }
        Privilege::Without => Ok(nested(without(arguments, json)?)),
        Privilege::Both if held => {
            ensure_setpriv()?;
            let mut figures = measure()?;
            figures.extend(nested(without(arguments, json)?));
            Ok(figures)
        }
        Privilege::Both => {
            eprintln!("this process has no CAP_SYS_NICE: there are only figures without it");
            Ok(nested(without(arguments, json)?))
        }
    }
}

fn nested(figures: Map<String, Value>) -> Map<String, Value> {
    std::iter::once(("without_sys_nice".to_owned(), figures.into())).collect()
}

/// Runs this program once more, without the capability.
fn without(arguments: &[&str], json: bool) -> Result<Map<String, Value>> {
    ensure_setpriv()?;
    eprintln!("without CAP_SYS_NICE:");
    let mut command = dropped(&std::env::current_exe()?);
    command.args(arguments).args(["--privilege", "gone"]);
    let (figures, ended_well) = last_line(&mut command, json)?;
    ensure!(ended_well, "the benchmark without CAP_SYS_NICE failed");
    Ok(figures)
}

/// A program without the capability, in none of the sets from which it or a child of it could take it back.
fn dropped(program: &std::path::Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-sys_nice",
        "--inh-caps=-sys_nice",
        "--ambient-caps=-sys_nice",
    ]);
    command.arg(program);
    command
}

/// Before anything is measured.
fn ensure_setpriv() -> Result<()> {
    let found = Command::new("setpriv").arg("--version").output();
    let found =
        found.context("setpriv is missing (Debian has it in util-linux): install it, or use --privilege with")?;
    ensure!(found.status.success(), "setpriv --version ended with {}", found.status);
    Ok(())
}

/// Whether the programs that this one starts have the capability. A real child tells: what it gets depends on its user and
/// on several sets of its parent.
fn children_hold_it() -> Result<bool> {
    let child = Command::new("cat").arg("/proc/self/status").output()?;
    holds_it(&String::from_utf8_lossy(&child.stdout))
}

/// Whether the capability is in effect, by a process's `status`.
fn holds_it(status: &str) -> Result<bool> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.context("/proc/self/status tells no capabilities")?;
    Ok(u64::from_str_radix(effective.trim(), 16)? >> CAP_SYS_NICE & 1 == 1)
}

/// The limit up to which a process may raise its priority without the capability, by its `limits`; 0 is none at all.
fn nice_limit(limits: &str) -> Option<u64> {
    let nice = limits.lines().find_map(|line| line.strip_prefix("Max nice priority"))?;
    nice.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_and_limit_are_read() -> Result<()> {
        assert!(holds_it("Name:\tcat\nCapEff:\t000001fffeffffff\n")?);
        assert!(!holds_it("CapPrm:\t000001fffeffffff\nCapEff:\t000001fffe7fffff\n")?);
        assert!(holds_it("Name:\tcat\n").is_err());
        assert_eq!(nice_limit("Max nice priority     0     0\n"), Some(0));
        assert_eq!(nice_limit("Max nice priority     20    20\n"), Some(20));
        assert_eq!(nice_limit("Max open files 1024 1024 files\n"), None);
        Ok(())
    }

    #[test]
    fn a_program_under_setpriv_does_not_have_it() -> Result<()> {
        if !children_hold_it()? {
            return Ok(()); // nothing to take away
        }
        let child = dropped("cat".as_ref()).arg("/proc/self/status").output()?;
        assert!(child.status.success(), "{child:?}");
        assert!(!holds_it(&String::from_utf8_lossy(&child.stdout))?);
        Ok(())
    }

    #[test]
    fn a_run_that_should_be_without_it_refuses_to_measure_with_it() -> Result<()> {
        let measured = |privilege| figures(privilege, &[], true, || Ok(Map::new())).is_ok();
        let held = children_hold_it()?;
        let limited = nice_limit(&std::fs::read_to_string("/proc/self/limits")?) == Some(0);
        assert_eq!(measured(Privilege::With), held);
        assert_eq!(measured(Privilege::Gone), !held && limited);
        Ok(())
    }
}
