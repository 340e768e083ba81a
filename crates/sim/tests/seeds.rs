//! A seed is a run: whoever runs it, whenever, sees the same.

#![expect(clippy::expect_used, reason = "a test")]

use std::process::Command;

use serde_json::Value;

fn one(seed: u64) -> Value {
    let ran = Command::new(env!("CARGO_BIN_EXE_tensorhold-sim"))
        .args(["one", &seed.to_string()])
        .output()
        .expect("the simulation starts");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "seed {seed}: {}: {errors}", ran.status);
    serde_json::from_slice(&ran.stdout).expect("an outcome")
}

#[test]
fn a_seed_shows_the_same_again_and_nothing_wrong() {
    let mut hashes = Vec::new();
    // Small worlds, for a build that is not optimised.
    for seed in [2, 5, 6] {
        let (first, again) = (one(seed), one(seed));
        assert_eq!(first, again, "seed {seed}");
        assert_eq!(first["wrong"], Value::Array(Vec::new()), "seed {seed}");
        hashes.push(first["hash"].clone());
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 3, "different seeds are different worlds");
}
