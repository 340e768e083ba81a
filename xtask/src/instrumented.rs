//! Builds with the compiler's instrumentation (coverage for the fuzzer, AddressSanitizer).
//!
//! With an explicit target, even if it is the host's, cargo leaves build scripts and macros uninstrumented:
//! instrumented ones could not be loaded into an uninstrumented compiler. Each kind of instrumentation has its own
//! output folder, because cargo would otherwise compile everything again whenever the flags change.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

pub(crate) struct Instrumented {
    /// The name of the output folder.
    pub(crate) name: &'static str,
    /// Flags of the compiler.
    pub(crate) flags: &'static [&'static str],
    /// The target to build for.
    host: String,
}

impl Instrumented {
    pub(crate) fn new(name: &'static str, flags: &'static [&'static str]) -> Result<Self> {
        let said = Command::new("rustc")
            .arg("-vV")
            .output()
            .context("rustc could not be started")?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let host = text.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host
            .context("rustc does not say for which host it compiles")?
            .to_owned();
        Ok(Self { name, flags, host })
    }

    /// The output folder.
    pub(crate) fn folder(&self) -> PathBuf {
        crate::target_dir().join(self.name)
    }

    /// Where programs of this profile are.
    pub(crate) fn programs(&self, profile: &str) -> PathBuf {
        self.folder().join(&self.host).join(profile)
    }

    /// A cargo command that builds with the flags. The subcommand comes first: options follow it.
    pub(crate) fn cargo(&self, subcommand: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(subcommand)
            .args(["--locked", "--target", &self.host, "--target-dir"])
            .arg(self.folder())
            .env("RUSTFLAGS", self.flags.join(" "))
            .current_dir(crate::repository());
        command
    }
}
