//! `cargo xtask names`: whether what we tell a user to install is ours, or what we mean.
//!
//! A hint such as `pip install NAME` runs whatever the registry has under that name. `xtask/names.txt` lists the names, with
//! the day on which they were looked at. A test compares that list with every hint in the repository; the command, which a
//! release runs, asks the registries: a name of ours must be free, or have no version that the changelog does not release.
//! The registries are asked by the ordinary clients, pip and cargo, as this machine has them set up.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

#[derive(Args)]
pub(crate) struct Names {
    /// Progress on standard error, and one JSON object on standard output, last
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Registry {
    Pypi,
    Crates,
}

/// What a registry says of a name.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    Free,
    Versions(Vec<String>),
}

#[derive(Serialize)]
struct Report {
    names: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    registry: Registry,
    name: String,
    ours: bool,
    versions: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    registry: Registry,
    name: String,
    ours: bool,
}

pub(crate) fn run(options: &Names) -> Result<()> {
    let mut listed = listed(&read("xtask/names.txt")?)?;
    listed.extend(crate::crates::names()?.into_iter().map(|name| Listed {
        registry: Registry::Crates,
        name,
        ours: true,
    }));
    let released = released(&read("CHANGELOG.md")?);
    let mut rows = Vec::new();
    // Those of others first: if they are not found either, the registry was not reached, and nothing is known of ours.
    listed.sort_by_key(|one| one.ours);
    for one in listed {
        eprintln!("asking for {}", one.name);
        let versions = match ask(one.registry, &one.name)? {
            Known::Versions(versions) => versions,
            Known::Free if one.ours => Vec::new(),
            Known::Free => bail!(
                "{} is not to be had: was the registry reached, and is the name right?",
                one.name
            ),
        };
        let strange: Vec<&String> = versions.iter().filter(|version| !released.contains(*version)).collect();
        ensure!(
            !one.ours || strange.is_empty(),
            "{} has versions that CHANGELOG.md does not release ({strange:?}): the name belongs to somebody else, or a release \
             was not written down",
            one.name
        );
        rows.push(Row {
            registry: one.registry,
            name: one.name,
            ours: one.ours,
            versions,
        });
    }
    if options.json {
        println!("{}", serde_json::to_string(&Report { names: rows })?);
    } else {
        for row in &rows {
            let state = match (row.ours, row.versions.first()) {
                (true, None) => "free",
                (true, Some(_)) => "ours",
                (false, _) => "theirs, as meant",
            };
            println!("{:<40} {state}", row.name);
        }
    }
    Ok(())
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(crate::repository().join(path)).with_context(|| format!("{path} cannot be read"))
}

/// The lines of `names.txt`.
fn listed(text: &str) -> Result<Vec<Listed>> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let parsed = lines.map(|line| {
        let mut words = line.split_whitespace();
        let mut word = || {
            words
                .next()
                .with_context(|| format!("names.txt: too few words: {line}"))
        };
        let (whose, registry, name) = (word()?, word()?, word()?);
        Ok(Listed {
            registry: match registry {
                "pypi" => Registry::Pypi,
                "crates" => Registry::Crates,
                _ => bail!("names.txt: no registry: {line}"),
            },
            name: name.to_owned(),
            ours: match whose {
                "ours" => true,
                "theirs" => false,
                _ => bail!("names.txt: neither ours nor theirs: {line}"),
            },
        })
    });
    parsed.collect()
}

/// The versions that the changelog has a date for.
fn released(changelog: &str) -> BTreeSet<String> {
    let headings = changelog.lines().filter_map(|line| line.strip_prefix("## ["));
    let dated = headings.filter_map(|heading| heading.split_once("] - "));
    let dated = dated.filter(|(_, date)| date.starts_with(|first: char| first.is_ascii_digit()));
    dated.map(|(version, _)| version.to_owned()).collect()
}

/// What a registry has under a name. Each client says in its own words that there is nothing; any other failure is an error.
fn ask(registry: Registry, name: &str) -> Result<Known> {
    let mut command = match registry {
        Registry::Pypi => {
            let mut pip = Command::new(crate::repository().join(".venv/bin/python"));
            // Also those for other Pythons than this one: somebody has the name all the same.
            pip.args([
                "-m",
                "pip",
                "index",
                "versions",
                "--ignore-requires-python",
                "--pre",
                name,
            ]);
            pip
        }
        Registry::Crates => {
            let mut cargo = Command::new("cargo");
            cargo.args(["info", "--registry", "crates-io", name]);
            cargo
        }
    };
    // Outside of the workspace: cargo would show the crate that is here.
    let done = command.current_dir(std::env::temp_dir()).stdin(Stdio::null()).output();
    let done = done.context("pip or cargo cannot be started; .ci/setup makes .venv")?;
    let (out, error) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    answer(registry, name, done.status.success(), &out, &error)
}

fn answer(registry: Registry, name: &str, success: bool, out: &str, error: &str) -> Result<Known> {
    let (key, nothing) = match registry {
        Registry::Pypi => ("Available versions:", "No matching distribution found"),
        Registry::Crates => ("version:", "could not find"),
    };
    if !success {
        // pip says the same of a registry that does not answer, but warns of it first.
        let silent = error.contains("Retrying");
        ensure!(
            error.contains(nothing) && !silent,
            "the registry did not answer for {name}: {error}"
        );
        return Ok(Known::Free);
    }
    let versions = out.lines().find_map(|line| line.trim().strip_prefix(key));
    let versions = versions.with_context(|| format!("no versions of {name} in: {out}"))?;
    let versions = versions
        .split(',')
        .filter_map(|version| version.split_whitespace().next());
    Ok(Known::Versions(versions.map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a line tells to install, by each of the phrases in it.
    fn hinted(line: &str) -> Vec<(Registry, String)> {
        const PHRASES: [(&str, Registry); 3] = [
            ("pip install ", Registry::Pypi),
            ("cargo install ", Registry::Crates),
            ("cargo add ", Registry::Crates),
        ];
        let mut found = Vec::new();
        for (phrase, registry) in PHRASES {
            for (at, _) in line.match_indices(phrase) {
                let rest = &line[at + phrase.len()..];
                let end = rest
                    .find(['`', ',', ';', '&', '|', ')', '#', '\\'])
                    .unwrap_or(rest.len());
                let words = rest[..end].split_whitespace();
                // What is quoted ends with its quotation mark, and flags, files and variables are no names.
                for word in words.map(|word| word.trim_matches(['\'', '"', '.', ':'])) {
                    let name = word.split(['[', '=', '<', '>', '!', '~']).next().unwrap_or_default();
                    let is_name = name.starts_with(|first: char| first.is_ascii_lowercase())
                        && name
                            .chars()
                            .all(|one| one.is_ascii_alphanumeric() || "-_".contains(one));
                    if !is_name {
                        break;
                    }
                    found.push((registry, name.to_owned()));
                }
            }
        }
        found
    }

    #[test]
    fn a_hint_is_found_with_its_name() {
        let pypi = |names: &[&str]| {
            names
                .iter()
                .map(|name| (Registry::Pypi, (*name).to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(hinted("do: pip install 'some[extra,other]'"), pypi(&["some"]));
        assert_eq!(hinted("pip install one two==X`, or"), pypi(&["one", "two"]));
        assert_eq!(hinted("pip install \"$(ls x)[a]\" numpy"), pypi(&[]));
        assert_eq!(
            hinted("cargo install cargo-x --version 1"),
            vec![(Registry::Crates, "cargo-x".to_owned())]
        );
    }

    #[test]
    fn every_hint_names_what_the_list_knows() {
        let listed: BTreeSet<(Registry, String)> = listed(&read("xtask/names.txt").expect("read"))
            .expect("a list")
            .into_iter()
            .map(|one| (one.registry, one.name))
            .collect();
        let files = Command::new("git")
            .args(["ls-files", "-z"])
            .current_dir(crate::repository())
            .output();
        let files = String::from_utf8(files.expect("git").stdout).expect("names");
        let mut hints = BTreeSet::new();
        for path in files.split('\0').filter(|path| !path.is_empty()) {
            // This file has hints to look for; notes on what was seen name what others wrote.
            if path == "xtask/src/names.rs" || path.starts_with("docs/verified/") || path.starts_with("fuzz/corpus/") {
                continue;
            }
            let text = std::fs::read(crate::repository().join(path)).unwrap_or_default();
            for line in String::from_utf8_lossy(&text).lines() {
                hints.extend(hinted(line).into_iter().map(|hint| (hint, path.to_owned())));
            }
        }
        assert!(hints.len() > 10, "{hints:?}");
        let unknown: Vec<_> = hints.iter().filter(|(hint, _)| !listed.contains(hint)).collect();
        assert!(
            unknown.is_empty(),
            "look these up, then list them in xtask/names.txt: {unknown:#?}"
        );
    }

    #[test]
    fn the_extras_of_the_package_are_on_the_list() {
        let listed = listed(&read("xtask/names.txt").expect("read")).expect("a list");
        let manifest = read("python/pyproject.toml").expect("read");
        let (_, extras) = manifest.split_once("[project.optional-dependencies]").expect("extras");
        let extras = extras.split("\n[").next().expect("a table");
        let lines = extras.lines().filter(|line| !line.starts_with('#'));
        let required: Vec<&str> = lines.flat_map(|line| line.split('"').skip(1).step_by(2)).collect();
        assert!(required.len() >= 2, "{required:?}");
        for requirement in required {
            let name = requirement.split(['>', '=', '<', '[']).next().expect("a name");
            assert!(
                listed
                    .iter()
                    .any(|one| one.registry == Registry::Pypi && one.name == name),
                "{name}"
            );
        }
    }

    #[test]
    fn silence_is_not_taken_for_a_free_name() {
        let nothing = "ERROR: No matching distribution found for x";
        assert_eq!(
            answer(Registry::Pypi, "x", false, "", nothing).expect("an answer"),
            Known::Free
        );
        assert!(
            answer(
                Registry::Pypi,
                "x",
                false,
                "",
                &format!("WARNING: Retrying (…)\n{nothing}")
            )
            .is_err()
        );
        assert!(answer(Registry::Crates, "x", false, "", "error: failed to fetch").is_err());
        let out = "x (0.5.1)\nAvailable versions: 0.5.1, 0.5.0\n";
        let versions = vec!["0.5.1".to_owned(), "0.5.0".to_owned()];
        assert_eq!(
            answer(Registry::Pypi, "x", true, out, "").expect("an answer"),
            Known::Versions(versions)
        );
    }

    #[test]
    fn only_versions_with_a_date_are_released() {
        let changelog = "## [Unreleased]\n## [0.2.0] - 2026-12-01\n## [0.1.0] - not published yet\n";
        assert_eq!(released(changelog), BTreeSet::from(["0.2.0".to_owned()]));
    }
}
