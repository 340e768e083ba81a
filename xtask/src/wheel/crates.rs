//! The crates that are compiled into the wheel's module, as cargo resolves them.
//!
//! `cargo tree` is asked for the Python package alone: `cargo metadata` resolves the whole workspace at once, with what the
//! tests of all members switch on, and only tells where each crate lies and what its licence is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The name and version of a crate.
pub(super) type Id = (String, String);

/// A crate, as its manifest and the lock file describe it.
pub(super) struct Crate {
    /// Its code is in the module; otherwise it is a macro, or a part of one, that ran in the compiler.
    pub(super) linked: bool,
    /// An SPDX expression.
    pub(super) licence: String,
    pub(super) repository: Option<String>,
    /// Where its sources lie.
    pub(super) folder: PathBuf,
    /// The SHA-256 of its package. One of this workspace has none.
    pub(super) checksum: Option<String>,
    pub(super) depends_on: BTreeSet<Id>,
}

/// What is compiled for the module, by name and version.
pub(super) struct Linked {
    pub(super) crates: BTreeMap<Id, Crate>,
    /// The crate of the module itself.
    pub(super) module: Id,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
}

impl Linked {
    /// Asks cargo, in the checkout in `root`.
    pub(super) fn find(root: &Path, target: &str) -> Result<Self> {
        let metadata = cargo(
            root,
            &["metadata", "--format-version", "1", "--filter-platform", target],
        )?;
        let metadata: Metadata = serde_json::from_str(&metadata).context("cargo metadata")?;
        let mut packages: BTreeMap<Id, Package> = metadata
            .packages
            .into_iter()
            .map(|package| ((package.name.clone(), package.version.clone()), package))
            .collect();
        let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock cannot be read")?;
        let mut checksums = checksums(&lock);
        let (module, compiled) = tree(root, target, "normal")?;
        let (_, linked) = tree(root, target, "normal,no-proc-macro")?;
        let mut crates = BTreeMap::new();
        for (id, depends_on) in compiled {
            let package = packages
                .remove(&id)
                .with_context(|| format!("cargo metadata does not tell of {} {}", id.0, id.1))?;
            let licence = package
                .license
                .with_context(|| format!("{} {} does not say under which licence it is", id.0, id.1))?;
            let folder = package.manifest_path.parent().context("a manifest in no folder")?;
            let one = Crate {
                linked: linked.contains_key(&id),
                // What crates wrote before there were expressions.
                licence: licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR "),
                repository: package.repository,
                folder: folder.to_owned(),
                checksum: checksums.remove(&id),
                depends_on,
            };
            crates.insert(id, one);
        }
        Ok(Self { crates, module })
    }

    /// Those whose code is in the module.
    pub(super) fn linked(&self) -> impl Iterator<Item = (&Id, &Crate)> {
        self.crates.iter().filter(|(_, one)| one.linked)
    }
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    super::output(command.args(arguments).arg("--locked").current_dir(root))
}

fn tree(root: &Path, target: &str, edges: &str) -> Result<(Id, BTreeMap<Id, BTreeSet<Id>>)> {
    let package = ["tree", "--package", "tensorhold-python", "--target", target];
    let form = ["--edges", edges, "--prefix", "depth", "--format", " {p}"];
    parse_tree(&cargo(root, &[&package[..], &form[..]].concat())?)
}

/// Reads lines such as `2 serde v1.0.0 (*)`: how deep, the crate, and marks. The lines below it that are one deeper are what
/// it depends on; they are printed the first time only.
fn parse_tree(text: &str) -> Result<(Id, BTreeMap<Id, BTreeSet<Id>>)> {
    let mut path: Vec<Id> = Vec::new();
    let mut found: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let mut word = || words.next().with_context(|| format!("cargo tree printed {line:?}"));
        let depth: usize = word()?
            .parse()
            .with_context(|| format!("cargo tree printed {line:?}"))?;
        let id = (word()?.to_owned(), word()?.trim_start_matches('v').to_owned());
        path.truncate(depth);
        if let Some(above) = path.last() {
            found.entry(above.clone()).or_default().insert(id.clone());
        }
        found.entry(id.clone()).or_default();
        path.push(id);
    }
    let module = path.into_iter().next().context("cargo tree printed nothing")?;
    Ok((module, found))
}

/// The checksums of a lock file.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let start = format!("{key} = \"");
            let mut lines = package.lines();
            lines.find_map(|line| Some(line.strip_prefix(&start)?.strip_suffix('"')?.to_owned()))
        };
        if let (Some(name), Some(version), Some(checksum)) = (value("name"), value("version"), value("checksum")) {
            found.insert((name, version), checksum);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str, version: &str) -> Id {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn a_tree_is_read_with_what_each_crate_depends_on() {
        let text =
            "0 a v0.1.0 (/somewhere)\n1 b v1.0.0 (proc-macro)\n2 c v2.0.0\n1 d v3.0.0\n2 b v1.0.0 (proc-macro) (*)\n";
        let (module, found) = parse_tree(text).expect("a tree");
        assert_eq!(module, id("a", "0.1.0"));
        assert_eq!(found.len(), 4);
        assert_eq!(found[&module], BTreeSet::from([id("b", "1.0.0"), id("d", "3.0.0")]));
        assert_eq!(found[&id("b", "1.0.0")], BTreeSet::from([id("c", "2.0.0")]));
        assert_eq!(found[&id("d", "3.0.0")], BTreeSet::from([id("b", "1.0.0")]));
        parse_tree("").expect_err("no crate at all");
    }

    #[test]
    fn checksums_belong_to_their_crates() {
        let lock = "version = 4\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\ndependencies = [\n \"b\",\n]\n\n\
                    [[package]]\nname = \"b\"\nversion = \"1.0.0\"\nsource = \"registry\"\nchecksum = \"abc\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([(id("b", "1.0.0"), "abc".to_owned())]));
    }

    #[test]
    fn this_workspace_is_found_without_what_only_its_tests_need() {
        let found = Linked::find(&crate::repository(), super::super::HOST).expect("cargo's answer");
        let linked: BTreeSet<&str> = found.linked().map(|(id, _)| id.0.as_str()).collect();
        for one in [
            "tensorhold-python",
            "tensorhold-features",
            "tokio",
            "aws-lc-sys",
            "ring",
        ] {
            assert!(linked.contains(one), "{one} is linked");
        }
        for one in ["tensorhold-testkit", "libtest-mimic", "proptest", "syn", "async-trait"] {
            assert!(!linked.contains(one), "{one} is not linked");
        }
        let macros = found.crates.iter().find(|(id, _)| id.0 == "async-trait");
        assert!(macros.is_some_and(|(_, one)| one.checksum.is_some()));
    }
}
