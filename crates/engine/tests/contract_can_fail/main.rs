//! A suite that cannot fail shows nothing. Here it runs on engines that break the contract, each in one way, and must
//! report it.

mod flaw;
mod flawed;

use flaw::FLAWS;
use flaw::Flaw::RemovesNothing;
use flawed::FlawedBackend;
use tensorhold_engine::testing::{Case, MemoryBackend, cases, run};

fn case(name: &str) -> Option<Case> {
    cases().into_iter().find(|case| case.name == name)
}

#[test]
fn every_flaw_is_noticed() {
    let unnoticed: Vec<_> = FLAWS
        .iter()
        .filter(|(flaw, name)| {
            let case = case(name).expect("a name of the suite");
            assert_eq!(run(&MemoryBackend, &case), Ok(()), "without the flaw {name} must pass");
            run(&FlawedBackend(*flaw), &case).is_ok()
        })
        .collect();
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:?}");
}

#[test]
fn a_failure_says_what_was_seen_and_what_the_contract_says() {
    let failure = run(
        &FlawedBackend(RemovesNothing),
        &case("remove::removed_means_miss_and_absent").expect("a name of the suite"),
    );
    let text = failure.expect_err("this engine removes nothing");
    for part in [
        "was removed",
        "it was Loaded",
        "contract: Remove is forced",
        "segment_mib: 64",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}
