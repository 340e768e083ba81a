//! Proof 2, second half: what is gone stays gone, whatever the engine still has or has again.
//!
//! | a reference after … | what is tried |
//! |---|---|
//! | its lease was released | get with that lease |
//! | another process aborted the sample | get with the lease; lease and read by reference; find |
//! | the holder restarted and brought removed objects back from its SSD | the same, while the objects *are* in the engine |
//!
//! All of it must fail. The last case is provoked for real: an SSD tier, samples whose copies are on it, a removal (which
//! leaves the copies there), a restart of the holder, and a look at the engine that the removed objects are readable again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tensorhold_core::{Deadline, Error, ErrorKind, ObjectKey, SampleId, SystemClock};
use tensorhold_engine::{Engine, EngineExt, GetOutcome, Presence};
use tensorhold_features::{FeatureStore, Lease, SampleRef, Stored, Wanted};
use tensorhold_testkit::Cluster;
use tokio::task::block_in_place;

use crate::crew::Member;
use crate::pattern;
use crate::report::Report;
use crate::worker::Role;
use crate::world::{MIB, STORE, Settings, WITHIN, put, right, runtime, trainers};

const LEN: usize = MIB;
/// A restarted holder is back, and its objects are readable, within this.
const RECOVERY: Duration = Duration::from_secs(60);

/// How many tries there were, and what did not fail as it should.
#[derive(Default)]
struct Tries {
    tried: usize,
    slipped: Vec<String>,
}

impl Tries {
    fn must_fail<T>(&mut self, what: &str, result: std::result::Result<T, Error>) {
        self.tried += 1;
        match result {
            Ok(_) => self.slipped.push(format!("{what} succeeded")),
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::NotFound) => {}
            Err(error) => self.slipped.push(format!("{what} failed otherwise: {error}")),
        }
    }

    fn claim(self, report: &mut Report, text: &str) {
        let seen = if self.slipped.is_empty() {
            format!("{} tries, all refused", self.tried)
        } else {
            format!(
                "{} of {} tries: {}",
                self.slipped.len(),
                self.tried,
                self.slipped.join("; ")
            )
        };
        report.claim(text, seen, self.slipped.is_empty() && self.tried > 0);
    }
}

pub(crate) fn run(report: &mut Report, rounds: usize) -> Result<()> {
    let cluster = Cluster::builder()
        .p2p_metadata(true)
        .segment_mib(64)
        .lease_ttl(Duration::from_secs(1))
        .ssd(true)
        .etcd_nodes(1)
        .start()?;
    let settings = Settings::new(cluster.endpoints())?;
    let engine = settings.engine()?;
    runtime()?.block_on(async {
        let store = settings.join(Arc::clone(&engine), None).await?;
        let proof = Gone {
            cluster,
            settings,
            engine,
            store,
        };
        eprintln!("torn: leases that were released, samples that another process aborts");
        proof.released_and_aborted(report, rounds).await?;
        eprintln!("torn: a holder that brings removed objects back from its SSD");
        proof.resurrected(report, rounds).await?;
        Ok(proof.store.close(WITHIN).await?)
    })
}

struct Gone {
    cluster: Cluster,
    settings: Settings,
    engine: Arc<dyn Engine>,
    store: FeatureStore,
}

impl Gone {
    async fn take(&self, reference: &SampleRef) -> Result<Lease> {
        let mut leases = self
            .store
            .lease(&trainers()?, std::slice::from_ref(reference), WITHIN)
            .await;
        Ok(leases.pop().context("no answer")??)
    }

    /// Every way to the bytes of a reference, with the lease that was good once.
    async fn try_all(&self, tries: &mut Tries, reference: &SampleRef, lease: &Lease) -> Result<()> {
        let one = std::slice::from_ref(reference);
        tries.must_fail(
            "get with the old lease",
            self.store.get(lease, Wanted::All, WITHIN).await,
        );
        for leased in self.store.lease(&trainers()?, one, WITHIN).await {
            tries.must_fail("lease by reference", leased);
        }
        for read in self.store.lease_shared(one, WITHIN).await {
            tries.must_fail("read by reference", read);
        }
        let SampleRef { sample, generation } = reference;
        let glimpse = self.store.find_live(sample, Some(*generation), WITHIN).await;
        tries.must_fail("get by reference", glimpse);
        let found = self.store.find(std::slice::from_ref(sample), WITHIN).await?;
        tries.tried += 1;
        if found.iter().flatten().any(|found| found.reference == *reference) {
            tries.slipped.push("it is found".to_owned());
        }
        Ok(())
    }

    async fn released_and_aborted(&self, report: &mut Report, rounds: usize) -> Result<()> {
        let (mut released, mut aborted) = (Tries::default(), Tries::default());
        for round in 0..rounds {
            let sample: SampleId = format!("gone/{round}").parse()?;
            let stored = put(&self.store, &sample, &[LEN], round as u64).await?;
            let lease = self.take(&stored.reference).await?;
            for answer in self.store.release(std::slice::from_ref(&lease), WITHIN).await {
                answer?;
            }
            let got = self.store.get(&lease, Wanted::All, WITHIN).await;
            released.must_fail("get with a released lease", got);

            let lease = self.take(&stored.reference).await?;
            ensure!(
                self.store.get(&lease, Wanted::All, WITHIN).await.is_ok(),
                "it is there before the abort"
            );
            block_in_place(|| {
                let role = Role::Abort {
                    sample: sample.to_string(),
                };
                let mut other = Member::start(
                    self.cluster.dir(),
                    &self.settings,
                    &format!("aborter-{round}"),
                    role,
                    None,
                )?;
                other.finish()
            })?;
            self.try_all(&mut aborted, &stored.reference, &lease).await?;
        }
        released.claim(report, "a get after the release of its lease is an error");
        aborted.claim(
            report,
            "after an abort by another process, every way to the sample is an error",
        );
        Ok(())
    }

    async fn resurrected(&self, report: &mut Report, samples: usize) -> Result<()> {
        let mut dead: Vec<(Stored, Lease, ObjectKey)> = Vec::new();
        for n in 0..samples {
            let sample: SampleId = format!("dead/{n}").parse()?;
            let stored = put(&self.store, &sample, &[LEN], n as u64).await?;
            let lease = self.take(&stored.reference).await?;
            let key = only_key(&stored)?;
            dead.push((stored, lease, key));
        }
        let keys: Vec<ObjectKey> = dead.iter().map(|(_, _, key)| key.clone()).collect();
        let on_ssd = |presence: &Presence| matches!(presence, Presence::Present { ssd: 1.., .. });
        self.until("every object has a copy on SSD", &keys, |found| {
            found.iter().all(on_ssd)
        })
        .await?;
        for (n, (stored, lease, _)) in dead.iter().enumerate() {
            // Some are used up, some aborted under their lease.
            if n % 2 == 0 {
                for answer in self.store.ack(std::slice::from_ref(lease), WITHIN).await {
                    answer?;
                }
            } else {
                for answer in self
                    .store
                    .abort(std::slice::from_ref(&stored.reference.sample), WITHIN)
                    .await
                {
                    answer?;
                }
                for answer in self.store.release(std::slice::from_ref(lease), WITHIN).await {
                    answer?;
                }
            }
        }
        self.store.drain(WITHIN).await?;
        let absent = |presence: &Presence| *presence == Presence::Absent;
        self.until("every object is removed", &keys, |found| found.iter().all(absent))
            .await?;
        block_in_place(|| self.cluster.holder(0).restart())?;
        self.until("removed objects are back", &keys, |found| !found.iter().any(absent))
            .await?;
        let readable = self.readable(&keys)?;
        let mut tries = Tries::default();
        for (stored, lease, _) in &dead {
            self.try_all(&mut tries, &stored.reference, lease).await?;
        }
        report.claim(
            "the holder's restart really brings removed objects back",
            format!("{readable} of {samples} removed objects are readable in the engine"),
            readable > 0,
        );
        tries.claim(
            report,
            "after that restart, every way to the removed samples is an error",
        );
        let mut fresh = 0;
        for (n, (stored, _, _)) in dead.iter().enumerate() {
            let seed = 1000 + n as u64;
            let again = self.put_again(&stored.reference.sample, seed).await?;
            let lease = self.take(&again.reference).await?;
            let tensors = self.store.get(&lease, Wanted::All, WITHIN).await?;
            fresh += usize::from(right(&tensors, seed)?);
        }
        report.claim(
            "the same ids put again have their new bytes",
            format!("{fresh} of {samples}"),
            fresh == samples,
        );
        report.figure("resurrected", readable);
        Ok(())
    }

    /// Puts a sample although the engine may for a while still choose the memory of the holder that is gone.
    async fn put_again(&self, sample: &SampleId, seed: u64) -> Result<Stored> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, RECOVERY);
        loop {
            match put(&self.store, sample, &[LEN], seed).await {
                Ok(stored) => return Ok(stored),
                Err(error) if deadline.passed(&clock) => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    /// How many objects the bare engine hands out, with the bytes that they had.
    fn readable(&self, keys: &[ObjectKey]) -> Result<usize> {
        block_in_place(|| {
            let memory = self.engine.allocate(LEN, WITHIN)?;
            let mut readable = 0;
            for (n, key) in keys.iter().enumerate() {
                let outcome = self.engine.get_one(key, &memory.whole(), WITHIN)?;
                let loaded = matches!(outcome, GetOutcome::Loaded);
                readable += usize::from(loaded && pattern::holds(&memory.whole(), n as u64)?);
            }
            Ok(readable)
        })
    }

    async fn until(&self, what: &str, keys: &[ObjectKey], ready: impl Fn(&[Presence]) -> bool) -> Result<()> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, RECOVERY);
        loop {
            let found = block_in_place(|| self.engine.probe(keys, WITHIN))?;
            if ready(&found) {
                return Ok(());
            }
            ensure!(
                !deadline.passed(&clock),
                "{what}: not within {RECOVERY:?}, but {found:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The key of a sample of one object, as the store names it.
fn only_key(stored: &Stored) -> Result<ObjectKey> {
    let description = serde_json::to_vec(&*stored.description)?;
    // Only a plan needs the nonce.
    let unused = tensorhold_core::Nonce::from_u64(0);
    let keys = tensorhold_features::object_keys(&STORE.parse()?, &stored.reference, unused, Some(&description), "")?;
    keys.into_iter().next().context("one object")
}
