//! What a wheel says about itself, and what auditwheel says about it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::crates::Linked;
use super::{GLIBC, SBOM, Tools, sbom};

#[derive(Serialize)]
pub(super) struct Report {
    /// What it runs on, as its name says: CPython, its binary interface, the system.
    tag: String,
    bytes: u64,
    /// The newest version of glibc that it asks for.
    glibc: String,
    pub(super) sha256: String,
    /// Whether a second build, in another folder, gave the same bytes.
    pub(super) equal: Option<bool>,
    /// The crates that its SBOM names, those of macros included.
    sbom_components: usize,
    /// The crates whose code is in it.
    linked_crates: usize,
}

/// What `auditwheel show --json` prints.
#[derive(Deserialize)]
struct Audit {
    /// The system that it could be tagged for.
    overall_tag: String,
    versioned_symbols: BTreeMap<String, Vec<String>>,
}

impl Report {
    pub(super) fn print(&self, wheel: &Path) {
        println!("{}", wheel.display());
        println!("  {}, {} bytes, glibc {} or later", self.tag, self.bytes, self.glibc);
        println!(
            "  {} crates linked, {} in its SBOM",
            self.linked_crates, self.sbom_components
        );
        println!("  sha256 {}", self.sha256);
        if let Some(equal) = self.equal {
            println!(
                "  a second build in another folder is {}",
                if equal { "equal" } else { "NOT equal" }
            );
        }
    }
}

/// Fails if the wheel asks for more than its tag says, or if its SBOM leaves a crate out.
pub(super) fn look(tools: &Tools, wheel: &Path, linked: &Linked) -> Result<Report> {
    let name = wheel.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let tag = name
        .splitn(3, '-')
        .nth(2)
        .context("the wheel's name has no tag")?
        .to_owned();
    let audit = super::output(
        Command::new(tools.program("auditwheel"))
            .args(["show", "--json"])
            .arg(wheel),
    )?;
    let audit: Audit = serde_json::from_str(&audit).context("auditwheel printed no JSON")?;
    ensure!(
        audit.overall_tag.starts_with("manylinux_"),
        "auditwheel says that the wheel runs on {} only: a library that is not everywhere is linked",
        audit.overall_tag
    );
    let glibc = newest(audit.versioned_symbols.values().flatten()).context("the wheel asks for no glibc")?;
    ensure!(
        glibc <= GLIBC,
        "the wheel needs glibc {}.{}, and is to run on {}.{}",
        glibc.0,
        glibc.1,
        GLIBC.0,
        GLIBC.1
    );
    let unpacked = tempfile::tempdir().context("no folder to unpack the wheel into")?;
    let unpack = ["-m", "zipfile", "--extract"];
    super::output(
        Command::new(tools.program("python"))
            .args(unpack)
            .arg(wheel)
            .arg(unpacked.path()),
    )?;
    let version = &linked.module.1;
    let sbom = unpacked
        .path()
        .join(format!("tensorhold-{version}.dist-info/sboms/{SBOM}"));
    let sbom = std::fs::read(&sbom).context("the wheel has no SBOM")?;
    let document: Value = serde_json::from_slice(&sbom).context("the SBOM is no JSON")?;
    let named = sbom::components(&document);
    for (id, _) in linked.linked() {
        ensure!(
            named.contains(id),
            "the SBOM leaves out {} {}: build the wheel again",
            id.0,
            id.1
        );
    }
    Ok(Report {
        tag,
        bytes: std::fs::metadata(wheel).context("the wheel is gone")?.len(),
        glibc: format!("{}.{}", glibc.0, glibc.1),
        sha256: sha256(wheel)?,
        equal: None,
        sbom_components: named.len(),
        linked_crates: linked.linked().count(),
    })
}

/// The newest of versions such as `GLIBC_2.17`, `GLIBC_2.3.4`; other libraries' are passed over.
fn newest<'a>(versions: impl Iterator<Item = &'a String>) -> Option<(u32, u32)> {
    let of_glibc = versions.filter_map(|version| version.strip_prefix("GLIBC_"));
    let numbers = of_glibc.filter_map(|version| {
        let mut parts = version.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    numbers.max()
}

pub(super) fn sha256(file: &Path) -> Result<String> {
    let said = super::output(Command::new("sha256sum").arg(file))?;
    let digest = said.split_whitespace().next();
    Ok(digest.context("sha256sum printed nothing")?.to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_of_glibc_are_compared_as_numbers() {
        let versions = ["GLIBC_2.9", "GLIBC_2.28", "GLIBC_2.3.4", "GCC_4.2.0", "GLIBC_PRIVATE"].map(str::to_owned);
        assert_eq!(super::newest(versions.iter()), Some((2, 28)));
        assert_eq!(super::newest([].iter()), None);
    }
}
