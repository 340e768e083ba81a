//! The program that `cargo xtask fuzz` builds and runs: libFuzzer around one target, named by `TENSORHOLD_FUZZ_TARGET`.
#![cfg_attr(fuzzing, no_main)]
#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a fuzzer that cannot run says why and ends"
)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static TARGET: std::sync::OnceLock<tensorhold_fuzz::Target> = std::sync::OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("TENSORHOLD_FUZZ_TARGET").expect("TENSORHOLD_FUZZ_TARGET names a target");
        tensorhold_fuzz::find(&name).expect("a target of this name")
    });
    target.try_input(bytes);
});

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("this was built without a fuzzer: run cargo xtask fuzz");
    std::process::exit(1);
}
