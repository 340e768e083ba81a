//! A suite that cannot fail shows nothing. Here it meets indexes that break the contract, each in one way, and must
//! say so.

mod flaw;
mod flawed_index;
mod flawed_kv;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flaw::{FLAWS, Flaw};
use flawed_index::FlawedIndex;
use flawed_kv::FlawedKv;
use tensorhold_core::{Clock, Result, StoreId, SystemRng};
use tensorhold_index::store::TxnStore;
use tensorhold_index::testing::{Backend, Case, Harness, MemoryBackend, MemoryHarness, cases, run};
use tensorhold_index::{Index, IndexConfig, Session, TxnIndex};

struct FlawedBackend(Flaw);

struct FlawedHarness {
    sound: MemoryHarness,
    flaw: Flaw,
}

#[async_trait]
impl Backend for FlawedBackend {
    async fn start(&self) -> Result<Box<dyn Harness>> {
        let sound = MemoryHarness::new()?;
        Ok(Box::new(FlawedHarness { sound, flaw: self.0 }))
    }
}

#[async_trait]
impl Harness for FlawedHarness {
    fn store(&self) -> &StoreId {
        self.sound.store()
    }

    fn settings(&self) -> IndexConfig {
        self.sound.settings()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.sound.clock()
    }

    async fn pass(&self, time: Duration) {
        self.sound.pass(time).await;
    }

    async fn kill_session(&self, session: &Session) -> Result<()> {
        self.sound.kill_session(session).await
    }

    async fn save(&self) -> Result<()> {
        self.sound.save().await
    }

    async fn put_back(&self) -> Result<()> {
        self.sound.put_back().await
    }

    async fn declare(&self) -> Result<()> {
        self.sound.declare().await
    }

    async fn txn_store(&self) -> Result<Arc<dyn TxnStore>> {
        self.sound.txn_store().await
    }

    fn index_over(&self, inner: Arc<dyn TxnStore>) -> Result<Arc<dyn Index>> {
        let mut settings = self.settings();
        match self.flaw {
            Flaw::HasNoGrace => settings.grace_ticks = 0,
            Flaw::RunsFast => settings.tick /= 3,
            _ => {}
        }
        let flaw = self.flaw;
        let txn_store = Arc::new(FlawedKv { inner, flaw });
        let index = TxnIndex::new(txn_store, self.store(), settings, self.clock(), Arc::new(SystemRng));
        Ok(Arc::new(FlawedIndex::new(Arc::new(index), flaw)))
    }
}

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
        &FlawedBackend(Flaw::CheckSaysYes),
        &case("read::check_says_no_when_the_lease_has_ended").expect("a name of the suite"),
    );
    let text = failure.expect_err("this index calls every token good");
    for part in ["bad when taken back", "contract: Check tells"] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}
