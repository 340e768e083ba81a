//! The notices: every crate that is linked, its licence, and the texts that its licence asks to be passed on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::crates::{Crate, Id, Linked};

const HEAD: &str = "\
Third-party notices

The compiled module of this package contains code of the crates below. Each is used under the licence named beside it; the
texts follow the list. Rust's standard library has a list of its own: RUST-STANDARD-LIBRARY.html.
";
/// How the names of files with such texts begin.
const NAMES: &[&str] = &["licen", "copying", "copyright", "notice", "unlicense"];
/// What such a file is not.
const CODE: &[&str] = &["rs", "c", "h", "py", "go", "toml", "json", "html", "sh"];

/// A text, and the files that have it.
struct Text {
    text: String,
    of: Vec<String>,
}

pub(super) fn text(linked: &Linked) -> Result<String> {
    let foreign: Vec<(&Id, &Crate)> = linked.linked().filter(|(_, one)| one.checksum.is_some()).collect();
    // By their words, which are the same in files that break lines elsewhere.
    let mut texts: BTreeMap<String, Text> = BTreeMap::new();
    let mut out = HEAD.to_owned();
    out.push('\n');
    for (id, one) in &foreign {
        let (name, version) = id;
        let from = one.repository.as_deref().unwrap_or("crates.io");
        writeln!(out, "{name} {version}: {} ({from})", one.licence)?;
        for file in files_of(id, one, &foreign)? {
            let bytes = std::fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let entry = texts.entry(words).or_insert_with(|| Text {
                text: text.trim_matches('\n').trim_end().to_owned(),
                of: Vec::new(),
            });
            entry.of.push(format!("{name} {version}"));
        }
    }
    let mut texts: Vec<Text> = texts.into_values().collect();
    texts.sort_by(|one, other| one.of.cmp(&other.of));
    for text in &mut texts {
        text.of.dedup();
        let rule = "-".repeat(120);
        write!(out, "\n{rule}\n{}\n{rule}\n\n{}\n", text.of.join(", "), text.text)?;
    }
    Ok(out)
}

/// The files with a crate's licence. One that was published without takes those of another crate of its repository.
fn files_of(id: &Id, one: &Crate, all: &[(&Id, &Crate)]) -> Result<Vec<PathBuf>> {
    let own = files(&one.folder)?;
    if !own.is_empty() {
        return Ok(own);
    }
    let related = |other: &Crate| other.licence == one.licence && other.repository == one.repository;
    for (_, other) in all
        .iter()
        .filter(|(_, other)| one.repository.is_some() && related(other))
    {
        let theirs = files(&other.folder)?;
        if !theirs.is_empty() {
            return Ok(theirs);
        }
    }
    bail!(
        "{} {} was published without the text of its licence ({}), and no other crate of its repository is linked",
        id.0,
        id.1,
        one.licence
    )
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let code = path
            .extension()
            .is_some_and(|ends| CODE.iter().any(|code| ends == *code));
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if !code && NAMES.iter().any(|start| name.starts_with(start)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_foreign_crate_that_is_linked_is_named_with_a_text() {
        let linked = Linked::find(&crate::repository(), super::super::HOST).expect("cargo's answer");
        let text = text(&linked).expect("notices");
        for ((name, version), one) in linked.linked().filter(|(_, one)| one.checksum.is_some()) {
            assert!(text.contains(&format!("\n{name} {version}: {}", one.licence)), "{name}");
            let heads = text.lines().filter(|line| !line.contains(": "));
            let named = heads
                .flat_map(|line| line.split(", "))
                .any(|head| head == format!("{name} {version}"));
            assert!(named, "{name} has no text");
        }
        assert!(!text.contains("\nsyn "), "a macro's crate is not linked");
        assert!(!text.contains("tensorhold-"), "our own licence is a file of its own");
        let home = super::super::cargo_home().expect("a folder");
        assert!(!text.contains(home.to_str().expect("text")), "no path of this machine");
    }

    #[test]
    fn files_with_licences_are_found_in_folders_too_and_code_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("vendored")).expect("a folder");
        for name in [
            "LICENSE-MIT",
            "Licence.txt",
            "license.rs",
            "README.md",
            "vendored/COPYING",
        ] {
            std::fs::write(folder.path().join(name), "x").expect("a file");
        }
        let found = files(folder.path()).expect("a list");
        let names: Vec<_> = found
            .iter()
            .map(|path| path.strip_prefix(folder.path()).expect("inside"))
            .collect();
        assert_eq!(names, ["LICENSE-MIT", "Licence.txt", "vendored/COPYING"].map(Path::new));
    }
}
