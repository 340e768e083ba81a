//! `cargo xtask fresh`: does a machine that has never seen the project build it and pass the quick tests?
//!
//! The work is `.ci/fresh`'s, a shell script like `.ci/setup`, because nearly all of it is other programs' work
//! (mmdebstrap, mount, chroot). This process becomes that script, so a signal meant for the task reaches the script's
//! clean-up and nothing stands in between.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

#[derive(Args)]
pub(crate) struct Fresh {
    /// Leave the root where it is, to look around in it
    #[arg(long)]
    keep: bool,
    /// Where to make it, in about 20 GB [default: TMPDIR or /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Try HEAD although the work tree differs from it
    #[arg(long)]
    ignore_uncommitted: bool,
    /// Progress on standard error, and one JSON object on standard output, last
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Fresh) -> Result<()> {
    let mut script = Command::new(crate::repository().join(".ci/fresh"));
    script.args(options.keep.then_some("--keep"));
    script.args(options.ignore_uncommitted.then_some("--ignore-uncommitted"));
    script.args(options.json.then_some("--json"));
    if let Some(dir) = &options.dir {
        let dir =
            std::path::absolute(dir).with_context(|| format!("{} cannot be made an absolute path", dir.display()))?;
        script.arg("--dir").arg(dir);
    }
    Err(script.exec()).with_context(|| format!("{script:?} could not be started"))
}
