//! `cargo xtask crates`: packs the crates that can be published, as `cargo publish` would, and looks at what is in them.
//!
//! Nothing is sent. Without `--verify` nothing is compiled either, which still finds what cargo refuses: a dependency without a
//! version, a file that is missing, a crate that depends on one that stays here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

/// What crates.io takes at most.
const MOST_BYTES: u64 = 10 * 1024 * 1024;

#[derive(Args)]
pub(crate) struct Crates {
    /// Compile each of them from its package, with the others of the same run (minutes)
    #[arg(long)]
    verify: bool,
    /// Progress on standard error, and one JSON object on standard output, last
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    crates: Vec<Packed>,
    verified: bool,
}

#[derive(Serialize)]
struct Packed {
    name: String,
    version: String,
    bytes: u64,
    files: usize,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// What a manifest says, as far as a registry shows it.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    description: Option<String>,
    license: Option<String>,
    rust_version: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    /// The registries that it may be published to. Absent: all; empty: none.
    publish: Option<Vec<String>>,
}

impl Package {
    /// Whether the manifest says what a registry shows.
    fn says_enough(&self) -> Result<()> {
        let name = &self.name;
        ensure!(self.description.is_some(), "{name} has no description");
        ensure!(self.license.is_some(), "{name} has no license");
        ensure!(self.rust_version.is_some(), "{name} has no rust-version");
        ensure!(
            (1..=5).contains(&self.keywords.len()),
            "{name} has no keywords, or more than five"
        );
        ensure!(
            (1..=5).contains(&self.categories.len()),
            "{name} has no categories, or more than five"
        );
        Ok(())
    }
}

pub(crate) fn run(options: &Crates) -> Result<()> {
    let target_dir = crate::target_dir().canonicalize().context("no target folder")?;
    let place = target_dir.join("package");
    let packages = published()?;
    for package in &packages {
        package.says_enough()?;
        let old = file(&place, package);
        if old.exists() {
            std::fs::remove_file(&old).with_context(|| format!("{} is in the way", old.display()))?;
        }
    }
    let mut cargo = cargo();
    cargo.args(["package", "--allow-dirty", "--locked", "--target-dir"]);
    cargo.arg(&target_dir).args((!options.verify).then_some("--no-verify"));
    cargo.args(packages.iter().flat_map(|package| ["--package", &package.name]));
    let status = cargo.status().context("cargo could not be started")?;
    ensure!(status.success(), "{cargo:?} ended with {status}");

    let crates = packages.iter().map(|package| look(&file(&place, package), package));
    let report = Report {
        crates: crates.collect::<Result<_>>()?,
        verified: options.verify,
    };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        for one in &report.crates {
            println!(
                "{:>8} bytes {:>4} files  {} {}",
                one.bytes, one.files, one.name, one.version
            );
        }
    }
    Ok(())
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::repository()).stdin(Stdio::null());
    cargo
}

/// The names of the members of the workspace that can be published.
pub(crate) fn names() -> Result<Vec<String>> {
    Ok(published()?.into_iter().map(|package| package.name).collect())
}

/// The members of the workspace that can be published.
fn published() -> Result<Vec<Package>> {
    let said = cargo()
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1"])
        .output()
        .context("cargo could not be started")?;
    ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let metadata: Metadata = serde_json::from_slice(&said.stdout).context("cargo metadata printed no JSON")?;
    let open = metadata
        .packages
        .into_iter()
        .filter(|package| package.publish.is_none());
    Ok(open.collect())
}

fn file(place: &Path, package: &Package) -> PathBuf {
    place.join(format!("{}-{}.crate", package.name, package.version))
}

/// Fails if the package lacks its licence, or holds tests, which could not be compiled outside of this repository.
fn look(file: &Path, package: &Package) -> Result<Packed> {
    let said = Command::new("tar")
        .args(["--list", "--gzip", "--file"])
        .arg(file)
        .output()
        .context("tar could not be started")?;
    ensure!(
        said.status.success(),
        "{}: {}",
        file.display(),
        String::from_utf8_lossy(&said.stderr)
    );
    let listed = String::from_utf8_lossy(&said.stdout).into_owned();
    let folder = format!("{}-{}/", package.name, package.version);
    let files: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix(&folder)).collect();
    for needed in ["LICENSE", "Cargo.toml", "Cargo.lock"] {
        ensure!(files.contains(&needed), "{} has no {needed}", file.display());
    }
    let tests = files
        .iter()
        .find(|name| name.starts_with("tests/") || name.starts_with("examples/"));
    ensure!(
        tests.is_none(),
        "{} holds {}",
        file.display(),
        tests.copied().unwrap_or_default()
    );
    let bytes = std::fs::metadata(file)
        .with_context(|| format!("{} is gone", file.display()))?
        .len();
    ensure!(
        bytes <= MOST_BYTES,
        "{} has {bytes} bytes, and crates.io takes {MOST_BYTES}",
        file.display()
    );
    Ok(Packed {
        name: package.name.clone(),
        version: package.version.clone(),
        bytes,
        files: files.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_published_says_enough_and_the_rest_stays() {
        let packages = published().expect("cargo's answer");
        let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
        for stays in ["tensorhold-testkit", "tensorhold-python", "tensorhold-fuzz", "xtask"] {
            assert!(!names.contains(&stays), "{stays} is for this repository alone");
        }
        assert!(names.contains(&"tensorhold-features") && names.contains(&"tensorhold-cli"));
        for package in &packages {
            package.says_enough().expect("a whole manifest");
        }
    }
}
