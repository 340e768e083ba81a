//! CPython embedded in a Rust program (feature `embed`), with the packages of a virtual environment.
//!
//! The interpreter is linked at build time (`PYO3_PYTHON`). Its packages are found at run time: in the environment
//! named by `TENSORHOLD_VENV`, else by `VIRTUAL_ENV`, else on the interpreter's default path.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tensorhold_core::{Error, Result};

/// Adds the virtual environment's packages to the interpreter's path, once.
pub(crate) fn prepare(py: Python<'_>) -> Result<()> {
    static DONE: PyOnceLock<()> = PyOnceLock::new();
    DONE.get_or_try_init(py, || add_packages(py))?;
    Ok(())
}

fn add_packages(py: Python<'_>) -> Result<()> {
    const OPERATION: &str = "mooncake.load";
    let Some(venv) = ["TENSORHOLD_VENV", "VIRTUAL_ENV"].iter().find_map(std::env::var_os) else {
        return Ok(());
    };
    let version = py.version_info();
    let packages: PathBuf = [
        venv.into(),
        PathBuf::from("lib"),
        format!("python{}.{}", version.major, version.minor).into(),
        "site-packages".into(),
    ]
    .iter()
    .collect();
    if !packages.is_dir() {
        return Err(Error::invalid(
            OPERATION,
            "the virtual environment has no packages for this interpreter; run .ci/setup",
        )
        .with("packages", packages.display()));
    }
    py.import("site")
        .and_then(|site| site.call_method1("addsitedir", (&packages,)))
        .map(drop)
        .map_err(|exception| {
            Error::internal(OPERATION, "Python cannot add the package folder to its path").with("exception", exception)
        })
}
