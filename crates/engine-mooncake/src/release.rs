//! Which releases of Mooncake this crate may drive.
//!
//! The wheel's module is the only interface there is, and it promises nothing from one release to the next. Result
//! codes, the meaning of a timeout and the time at which memory may be touched are facts that `tests/truths` found out,
//! release by release. With another release the promise "the committed bytes or an error" would rest on a guess. So an
//! engine is not opened with one, unless the user allows it ([`crate::MooncakeConfig::untested_release`], or
//! [`VARIABLE`] for programs that cannot change that setting). To support a new release: run `tests/truths` on it until
//! it passes, add it to [`KNOWN`], and move the bounds in `python/pyproject.toml`.

use pyo3::prelude::*;
use tensorhold_core::{Error, ErrorKind, Result};

/// The releases that `tests/truths` has been run on.
pub const KNOWN: &[&str] = &["0.3.13.post1"];

/// Set to `1`, this environment variable allows other releases, like the setting.
pub(crate) const VARIABLE: &str = "TENSORHOLD_UNTESTED_MOONCAKE";

/// The distributions that contain `mooncake.store`, each built for another kind of machine.
const DISTRIBUTIONS: &[&str] = &[
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-npu",
];

/// Refuses a release that is not known to work. `untested` accepts it, with a warning.
pub(crate) fn check(py: Python<'_>, untested: bool) -> Result<()> {
    let found = installed(py)?;
    let untested = untested || std::env::var_os(VARIABLE).is_some_and(|value| value == "1");
    match judge(&found) {
        Err(error) if untested => {
            tracing::warn!(%error, "an untested release of Mooncake is used, as the settings allow");
            Ok(())
        }
        verdict => verdict,
    }
}

/// The installed distributions that contain the module, with their versions.
fn installed(py: Python<'_>) -> Result<Vec<(&'static str, String)>> {
    let odd = |exception: PyErr| {
        Error::internal("mooncake.load", "Python cannot say which packages are installed").with("exception", exception)
    };
    let metadata = py.import("importlib.metadata").map_err(odd)?;
    let missing = metadata.getattr("PackageNotFoundError").map_err(odd)?;
    let mut found = Vec::new();
    for name in DISTRIBUTIONS {
        match metadata
            .call_method1("version", (name,))
            .and_then(|version| version.extract())
        {
            Ok(version) => found.push((*name, version)),
            Err(exception) if exception.is_instance(py, &missing) => {}
            Err(exception) => return Err(odd(exception)),
        }
    }
    Ok(found)
}

fn judge(found: &[(&'static str, String)]) -> Result<()> {
    // The part after a plus sign names a build, not a release.
    let release = |version: &str| version.split('+').next().unwrap_or_default().to_owned();
    let unknown = |(_, version): &&(&str, String)| !KNOWN.contains(&release(version).as_str());
    let refuse = |what: &str| {
        let message = format!(
            "{what}, and Tensorhold relies on behaviour that differs between releases. Install a release known to \
             work, or set untested_release (or {VARIABLE}=1) to try this one at your own risk"
        );
        Error::new(ErrorKind::Unsupported, "mooncake.load", message).with("known", KNOWN.join(" "))
    };
    match found.iter().find(unknown) {
        None if found.is_empty() => Err(refuse("no installed package says which release of Mooncake this is")),
        None => Ok(()),
        Some((name, version)) => {
            let error = refuse("this release of Mooncake was never tested with this release of Tensorhold");
            Err(error.with("package", name).with("release", version))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(found: &[(&'static str, &str)]) -> Result<()> {
        let found: Vec<_> = found
            .iter()
            .map(|(name, version)| (*name, (*version).to_owned()))
            .collect();
        judge(&found)
    }

    #[test]
    fn releases_that_were_tried_are_taken_in_every_build() {
        for version in ["0.3.13.post1", "0.3.13.post1+cu128"] {
            verdict(&[("mooncake-transfer-engine", version)]).expect(version);
        }
    }

    #[test]
    fn other_releases_are_refused_with_a_way_out() {
        for version in ["0.3.13", "0.3.13.post2", "0.4.0", ""] {
            let error = verdict(&[("mooncake-transfer-engine", version)]).expect_err(version);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(
                (error.fact("release"), error.fact("known")),
                (Some(version), Some("0.3.13.post1"))
            );
            assert!(error.to_string().contains("untested_release"), "{error}");
        }
        assert!(verdict(&[]).is_err(), "a release that cannot be told is no known one");
        let both = [
            ("mooncake-transfer-engine", "0.3.13.post1"),
            ("mooncake-transfer-engine-non-cuda", "9.9"),
        ];
        assert!(verdict(&both).is_err(), "either may be the one that is loaded");
    }
}
