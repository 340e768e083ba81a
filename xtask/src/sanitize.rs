//! `cargo xtask sanitize`: the tests over the memory engine, under AddressSanitizer.
//!
//! The `unsafe` code of this repository hands out addresses of registered memory; this task finds a use after the end
//! of that memory, or beyond it. The sanitizer is an unstable flag of the compiler, which `RUSTC_BOOTSTRAP` enables on
//! the stable one. The standard library and C code (AWS-LC) are not instrumented; their reads and writes are checked
//! where they call `memcpy` and similar functions. Tests that start servers or embed CPython are left out: a process
//! that loads foreign libraries needs the sanitizer loaded before them.
//!
//! `cargo xtask sanitize --storm` does that for the Python package: the storm of callers that leave (`cargo xtask prove
//! storm`) runs on an instrumented extension, in processes that load the sanitizer first. The compiler's own runtime is
//! only for programs, so clang's is used (Debian: `libclang-rt-19-dev`). Mooncake is not instrumented; the memory that
//! it is given is checked where it copies.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::features::python_bench;
use crate::instrumented::Instrumented;

/// The folder where Debian's packages put clang's runtimes.
const RUNTIMES: &str = "/usr/lib";
const RUNTIME: &str = "linux/libclang_rt.asan-x86_64.so";

#[derive(Args)]
pub(crate) struct Sanitize {
    /// The storm on an instrumented Python extension, instead of the tests
    #[arg(long)]
    storm: bool,
    /// Passed on to nextest, or to the storm: a filter, `--no-capture`, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(options: &Sanitize) -> Result<()> {
    let build = Instrumented::new("sanitize", &["-Zsanitizer=address"])?;
    if options.storm {
        return storm(&build, &options.rest);
    }
    let mut cargo = build.cargo(&["nextest", "run"]);
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        // A test that leaks on purpose (a hung call keeps its memory) is not a finding.
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1")
        .args([
            "--package",
            "tensorhold-engine",
            "--package",
            "tensorhold-features",
            "--package",
            "tensorhold-kvcache",
        ])
        .args([
            "--features",
            "tensorhold-engine/testing,tensorhold-kvcache/testing",
            "--no-fail-fast",
        ])
        .args(&options.rest);
    let status = cargo.status()?;
    ensure!(status.success(), "{cargo:?} ended with {status}");
    Ok(())
}

fn storm(build: &Instrumented, rest: &[String]) -> Result<()> {
    let runtime = runtime()?;
    let mut cargo = build.cargo(&["build"]);
    let status = cargo
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["--package", "tensorhold-python"])
        .status()?;
    ensure!(status.success(), "{cargo:?} ended with {status}");
    // A separate package, so that other programs that import the repository's package do not load the sanitizer.
    let python = build.folder().join("python");
    let package = python.join("tensorhold");
    if package.exists() {
        std::fs::remove_dir_all(&package)?;
    }
    std::fs::create_dir_all(&package)?;
    for file in std::fs::read_dir(crate::repository().join("python/tensorhold"))? {
        let file = file?;
        if file.path().extension().is_none_or(|extension| extension != "so") {
            std::os::unix::fs::symlink(file.path(), package.join(file.file_name()))?;
        }
    }
    std::fs::copy(
        build.programs("debug").join("lib_tensorhold.so"),
        package.join("_tensorhold.abi3.so"),
    )?;
    let repository = crate::repository().join("python");
    let path = [python, repository.join("tests"), repository.join("bench")];
    let mut storm = python_bench("storm.py", false, false)?;
    let status = storm
        .args(rest)
        .env("PYTHONPATH", std::env::join_paths(path)?)
        .env("LD_PRELOAD", runtime)
        // CPython and Mooncake free memory in another way than they allocated it, and leak at their end.
        .env(
            "ASAN_OPTIONS",
            "detect_leaks=0:alloc_dealloc_mismatch=0:detect_odr_violation=0",
        )
        .status()
        .context("the storm could not be started")?;
    ensure!(status.success(), "the storm ended with {status}");
    Ok(())
}

/// The newest of the installed clang runtimes.
fn runtime() -> Result<PathBuf> {
    let mut found = Vec::new();
    for llvm in std::fs::read_dir(RUNTIMES)?.flatten() {
        let versions = llvm.path().join("lib/clang");
        for version in std::fs::read_dir(&versions).into_iter().flatten().flatten() {
            found.push(version.path().join("lib").join(RUNTIME));
        }
    }
    found.retain(|path: &PathBuf| Path::exists(path));
    found.sort();
    found
        .pop()
        .context("clang's AddressSanitizer is not installed: apt-get install libclang-rt-19-dev")
}
