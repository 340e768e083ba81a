//! `cargo xtask sanitize`: the tests over the memory engine, under AddressSanitizer.
//!
//! What `unsafe` there is hands out addresses of registered memory; a use after its end, or beyond it, is what this finds.
//! The sanitizer is an unstable flag of the compiler, which `RUSTC_BOOTSTRAP` lets the stable one take. The standard
//! library and C code (AWS-LC) are not instrumented; reads and writes of theirs are checked where they call `memcpy` and
//! its like. Tests that start servers or embed CPython are left out: a process that loads foreign libraries needs the
//! sanitizer loaded before them.

use anyhow::{Result, ensure};
use clap::Args;

use crate::instrumented::Instrumented;

#[derive(Args)]
pub(crate) struct Sanitize {
    /// Passed on to nextest: a filter, `--no-capture`, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(options: &Sanitize) -> Result<()> {
    let build = Instrumented::new("sanitize", &["-Zsanitizer=address"])?;
    let mut cargo = build.cargo(&["nextest", "run"]);
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        // A test that leaks on purpose (a hung call keeps its memory) is no finding.
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1")
        .args([
            "--package",
            "holdfast-engine",
            "--package",
            "holdfast-features",
            "--package",
            "holdfast-kv",
        ])
        .args([
            "--features",
            "holdfast-engine/testing,holdfast-kv/testing",
            "--no-fail-fast",
        ])
        .args(&options.rest);
    let status = cargo.status()?;
    ensure!(status.success(), "{cargo:?} ended with {status}");
    Ok(())
}
