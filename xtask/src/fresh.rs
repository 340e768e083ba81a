//! `cargo xtask fresh`: does a machine that has never seen the project build it and pass the quick tests?
//!
//! `--wheel` asks the same for a reader of the README's first five minutes: a machine without Rust and without the sources, on
//! which the printed lines are typed. The wheel is the one in `target/wheels`, because the README's reader builds it elsewhere as
//! long as none is published.
//!
//! The work is `.ci/fresh`'s, a shell script like `.ci/setup`, because nearly all of it is other programs' work
//! (mmdebstrap, mount, chroot). This process becomes that script, so a signal meant for the task reaches the script's
//! clean-up and nothing stands in between.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::quickstart::{lines_of, script};
use crate::readme::blocks;

#[derive(Args)]
pub(crate) struct Fresh {
    /// Type the README's first five minutes instead, with the wheel in target/wheels; no Rust, no sources
    #[arg(long, conflicts_with = "ignore_uncommitted")]
    wheel: bool,
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
    if options.wheel {
        let reader = crate::target_dir().join("fresh");
        prepare(&reader, &crate::wheel::built()?, &crate::readme::text()?)?;
        script.arg("--reader").arg(std::path::absolute(&reader)?);
    }
    Err(script.exec()).with_context(|| format!("{script:?} could not be started"))
}

/// Writes what `.ci/fresh` needs to be a reader: in `home` the wheel and the example, and in `typed` the lines to type.
fn prepare(reader: &Path, wheel: &Path, readme: &str) -> Result<()> {
    if reader.exists() {
        fs::remove_dir_all(reader).with_context(|| format!("{} is in the way", reader.display()))?;
    }
    let home = reader.join("home");
    let wheels = home.join("target/wheels");
    fs::create_dir_all(&wheels).with_context(|| format!("{} cannot be made", wheels.display()))?;
    let copy = wheels.join(wheel.file_name().context("the wheel has no name")?);
    fs::copy(wheel, &copy).with_context(|| format!("{} cannot be copied", wheel.display()))?;
    let lines = as_root(readme)?
        .into_iter()
        .chain(lines_of(readme)?)
        .collect::<Vec<_>>();
    // A reader saves the printed example under the name that the lines have for it.
    let example = blocks(readme, "python").into_iter().next();
    let name = lines.iter().find_map(|line| line.strip_prefix("python "));
    let path = home.join(name.context("no line runs the example")?);
    fs::create_dir_all(path.parent().unwrap_or(&home))?;
    fs::write(&path, example.context("the README has no example")?)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    fs::write(reader.join("typed"), script(&lines)?).context("the lines to type cannot be written")
}

/// The lines that a reader types as root: those after the prompt `#` in blocks that are marked `console`.
fn as_root(readme: &str) -> Result<Vec<String>> {
    let blocks = blocks(readme, "console");
    let lines = blocks.iter().flat_map(|block| block.lines());
    let typed: Vec<String> = lines
        .filter_map(|line| line.strip_prefix("# "))
        .map(str::to_owned)
        .collect();
    ensure!(
        !typed.is_empty(),
        "the README has no block marked console that says what to install"
    );
    Ok(typed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_reader_has_the_wheel_and_the_example_and_types_what_is_printed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (reader, wheel) = (folder.path().join("reader"), folder.path().join("tensorhold-0.whl"));
        std::fs::write(&wheel, "a wheel").expect("written");
        std::fs::create_dir_all(reader.join("home")).expect("made");
        std::fs::write(reader.join("home/left by an earlier run"), "").expect("written");
        let readme = crate::readme::text().expect("a README");
        super::prepare(&reader, &wheel, &readme).expect("prepared");

        let mut files = Vec::new();
        let mut folders = vec![reader.join("home")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { &mut folders } else { &mut files }.push(path);
            }
        }
        files.sort();
        let example = reader.join("home/examples/first.py");
        assert_eq!(
            files,
            [example.clone(), reader.join("home/target/wheels/tensorhold-0.whl")]
        );
        let printed = std::fs::read_to_string(&example).expect("the example");
        let ours = std::fs::read_to_string(crate::repository().join("examples/first.py")).expect("an example");
        let is_ours = |line: &str| ours.lines().any(|own| own.trim() == line.trim());
        assert!(printed.lines().all(is_ours), "{printed}");
        let typed = std::fs::read_to_string(reader.join("typed")).expect("the lines");
        let at = |line: &str| {
            typed
                .find(&format!("\n{line}"))
                .unwrap_or_else(|| panic!("{line} is missing in\n{typed}"))
        };
        assert!(at("apt-get update") < at("apt-get install") && at("apt-get install") < at("python3 -m venv"));
        assert!(!typed.contains("cargo"), "a reader has no Rust:\n{typed}");
    }
}
