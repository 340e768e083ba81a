//! Replays what the fuzzer has found, corpora and regressions, as ordinary tests: one for each target and kind.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says what it expects, and which input it tries"
)]

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use tensorhold_fuzz::{TARGETS, Target};

fn inputs(kind: &str, target: Target) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target.name);
    let Ok(files) = std::fs::read_dir(&folder) else {
        return Vec::new();
    };
    files.map(|file| file.expect("readable").path()).collect()
}

fn replay(kind: &str, target: Target) -> Result<(), Failed> {
    let inputs = inputs(kind, target);
    if kind == "corpus" && inputs.is_empty() {
        return Err("the target has no corpus: a seed for each form that its decoder knows belongs into it".into());
    }
    for input in inputs {
        // An input that takes too much memory ends the program: its name is the last word then.
        println!("{}", input.display());
        target.try_input(&std::fs::read(&input).expect("readable"));
    }
    Ok(())
}

fn main() {
    let arguments = Arguments::from_args();
    let kinds = ["corpus", "regressions"];
    let trials = TARGETS.iter().flat_map(|target| {
        kinds.map(|kind| Trial::test(format!("{kind}::{}", target.name), move || replay(kind, *target)))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
