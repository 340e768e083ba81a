//! `cargo xtask api`: is the public API of the published crates what their golden files say?
//!
//! The golden file of a crate is `crates/<crate>/api.txt`, one line for each item that a user can name, without
//! features. A change of the API is thereby a line in the diff of its commit; `docs/versioning.md` says what such a
//! change needs.
//!
//! rustdoc describes each crate as JSON, and the crate `public-api` makes lines of that. The JSON is an output of rustdoc
//! that is not stable: `RUSTC_BOOTSTRAP` enables it on the stable toolchain, and `public-api` is pinned to the release
//! that reads this toolchain's format. Only rustdoc gets the variable, from a script in its place: build scripts of
//! several dependencies look at it too, and would have everything compiled once more.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use public_api::Builder;

/// The folders of the crates whose API is promised.
const PUBLISHED: &[&str] = &[
    "core",
    "custody",
    "engine",
    "engine-mooncake",
    "features",
    "index",
    "index-etcd",
    "kvcache",
    "metrics",
    "prefetch",
    "settings",
    "steward",
    "trace",
];

#[derive(Args)]
pub(crate) struct Api {
    /// Write the golden files anew
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(options: &Api) -> Result<()> {
    let described = describe()?;
    let mut changed = Vec::new();
    for &name in PUBLISHED {
        let now = listed(&described.join(format!("tensorhold_{}.json", name.replace('-', "_"))))?;
        let golden = crate::repository().join("crates").join(name).join("api.txt");
        if options.bless {
            std::fs::write(&golden, &now).with_context(|| format!("{} cannot be written", golden.display()))?;
            continue;
        }
        let recorded =
            std::fs::read_to_string(&golden).with_context(|| format!("{} cannot be read", golden.display()))?;
        let difference = difference(&recorded, &now);
        if !difference.is_empty() {
            println!("crates/{name}/api.txt:\n{}", difference.join("\n"));
            changed.push(name);
        }
    }
    if options.bless {
        println!("the public API of {} crates is recorded", PUBLISHED.len());
        return Ok(());
    }
    ensure!(
        changed.is_empty(),
        "the public API of {} has changed; if that is intended, run cargo xtask api --bless, and commit what it writes",
        changed.join(", ")
    );
    println!("the public API of {} crates is as recorded", PUBLISHED.len());
    Ok(())
}

/// Has rustdoc write a JSON file for each crate, and returns the folder.
fn describe() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["doc", "--locked", "--no-deps", "--lib", "--quiet"])
        .args(
            PUBLISHED
                .iter()
                .flat_map(|name| ["--package".to_owned(), format!("tensorhold-{name}")]),
        )
        .env("RUSTDOC", rustdoc()?)
        .env("RUSTDOCFLAGS", "-Zunstable-options --output-format=json")
        .current_dir(crate::repository());
    let status = command
        .status()
        .with_context(|| format!("{command:?} could not be started"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(crate::target_dir().join("doc"))
}

/// A rustdoc that may use unstable options.
fn rustdoc() -> Result<PathBuf> {
    let folder = crate::target_dir().join("api");
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let script = folder.join("rustdoc");
    std::fs::write(&script, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    std::path::absolute(&script).with_context(|| format!("{} has no absolute path", script.display()))
}

/// The items of a crate, one on each line. Blanket implementations say nothing about a crate; auto traits and derived
/// implementations are left out because they would be half of the file.
fn listed(json: &Path) -> Result<String> {
    let api = Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("{} cannot be read", json.display()))?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}

/// The lines that only one of the two texts has, with a sign.
fn difference(recorded: &str, now: &str) -> Vec<String> {
    let only = |sign: char, text: &str, other: &str| -> Vec<String> {
        let others: std::collections::HashSet<&str> = other.lines().collect();
        let missing = text.lines().filter(|line| !others.contains(line));
        missing.map(|line| format!("{sign} {line}")).collect()
    };
    [only('-', recorded, now), only('+', now, recorded)].concat()
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn what_went_and_what_came_is_told() {
        assert_eq!(
            difference("pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n"),
            ["- pub fn a()", "+ pub fn c()"]
        );
        assert!(difference("pub fn a()\n", "pub fn a()\n").is_empty());
    }
}
