//! `cargo xtask real vllm`: the frameworks themselves, on a CPU, with Tensorhold in place. The programs are in
//! `python/real`; the last line that they print is one JSON object.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::features::build_package;
use crate::repository;

#[derive(Clone, Copy, ValueEnum)]
enum Framework {
    /// Prefixes across vLLM processes, with a control
    Vllm,
    /// Prefixes across SGLang servers and flushes, with a control
    Sglang,
    /// Training offline and online, against SpecForge's own store
    Specforge,
    /// Time to the first token: computed, from Tensorhold, and from SGLang's own back end
    FirstToken,
}

impl Framework {
    fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Specforge => "specforge",
            Self::FirstToken => "first_token",
        }
    }
}

#[derive(Args)]
pub(crate) struct Real {
    framework: Framework,
    /// Only the figures, as one line of JSON
    #[arg(long)]
    json: bool,
    /// Keep the figures for docs/verified.md, if nothing went wrong
    #[arg(long)]
    record: bool,
}

pub(crate) fn run(options: &Real) -> Result<()> {
    let is_kept = !matches!(options.framework, Framework::FirstToken);
    ensure!(
        is_kept || !options.record,
        "the times of first-token are not kept; leave out --record"
    );
    build_package()?;
    let python = repository().join("python");
    let mut command = Command::new(repository().join(".venv/bin/python"));
    command
        .args(["-m", &format!("real.{}", options.framework.name())])
        .args(options.json.then_some("--json"))
        .args(options.record.then(|| format!("--record={}", options.framework.name())))
        .current_dir(python);
    let status = command
        .status()
        .with_context(|| format!("{command:?} could not be started: run .ci/setup"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
