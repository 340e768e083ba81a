//! The run of one seed: a while of work with faults, then calm, then everything is used up, and nothing may be left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Rng, SeededRng};
use tensorhold_features::{FeatureStore, OrphanAudit, Wanted};
use tensorhold_index::testing::Records;
use tensorhold_index::{RecordQuery, SampleRef, Stage};

use crate::judge::State;
use crate::work::{Plan, Slot, Work};
use crate::world::{Process, World};

/// How long the stores have to themselves when the faults have ended. Sessions end, leases run out, holders come back.
const CALM: Duration = Duration::from_secs(15);
/// How long using everything up may take, and each step of clearing up after it.
const LATE: Duration = Duration::from_secs(60);
const CALL: Duration = Duration::from_secs(5);

/// What a seed showed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) hash: String,
    pub(crate) events: u64,
    pub(crate) simulated_seconds: f64,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) states: BTreeMap<String, u64>,
    pub(crate) wrong: Vec<String>,
}

struct Run {
    world: World,
    work: Work,
    slots: Vec<Slot>,
}

/// Runs one seed.
pub(crate) fn run(seed: u64, traced: bool) -> Result<Outcome> {
    let plan = Plan::draw(&SeededRng::new(seed ^ 0x51A1))?;
    if traced {
        eprintln!("{plan:#?}");
    }
    let world = World::new(seed, plan.segment_bytes, plan.holders, traced)?;
    world.outside.judge.lock().sums = plan.features.checksum;
    let work = Work::new(&world.outside, plan);
    let mut run = Run {
        world,
        work,
        slots: Vec::new(),
    };
    for _ in 0..run.work.plan.processes {
        let (process, slot) = run.start()?;
        run.world.processes.push(process);
        run.slots.push(slot);
    }
    let long = 10 + run.world.outside.rng.below(50);
    run.trouble(Duration::from_secs(long))?;
    run.calm();
    run.use_up();
    run.clear_up();
    let outside = &run.world.outside;
    let mut judge = outside.judge.lock();
    judge.look(outside);
    let named = |(what, count): (&str, u64)| (what.to_owned(), count);
    Ok(Outcome {
        seed,
        hash: format!("{:016x}", outside.hash()),
        events: outside.events.load(Ordering::Relaxed),
        simulated_seconds: run.world.time().as_secs_f64(),
        faults: outside
            .faults
            .counts()
            .map(|(fault, count)| named((fault.says(), count)))
            .collect(),
        states: judge
            .states()
            .map(|(state, count)| named((state.says(), count)))
            .collect(),
        wrong: std::mem::take(&mut judge.wrong),
    })
}

impl Run {
    fn start(&mut self) -> Result<(Process, Slot)> {
        let process = self.world.start()?;
        let slot = self.work.begin(&process);
        Ok((process, slot))
    }

    /// Whether it is time to stop: one wrong thing brings forth others.
    fn is_over(&self) -> bool {
        !self.world.outside.judge.lock().wrong.is_empty()
    }

    fn trouble(&mut self, long: Duration) -> Result<()> {
        while self.world.time() < long && !self.is_over() {
            let span = self.world.advance();
            let holders = self.work.plan.holders;
            if let Some(killed) = self.world.trouble(span, holders) {
                let (process, slot) = self.start()?;
                let dead = std::mem::replace(&mut self.world.processes[killed], process);
                // Nothing that it still does, or that its destructors do, reaches anybody.
                dead.link.dead.store(true, Ordering::Relaxed);
                self.world.outside.judge.lock().strayed(dead.link.name);
                drop(std::mem::replace(&mut self.slots[killed], slot));
                drop(dead);
            }
        }
        Ok(())
    }

    fn calm(&mut self) {
        self.work.stop.store(true, Ordering::Relaxed);
        self.world.calm_down();
        let until = self.world.time() + CALM;
        while self.world.time() < until && !self.is_over() {
            self.world.advance();
        }
    }

    /// Runs this in every process, again and again, until it is done or late. Returns whether it was done.
    fn until<F>(&mut self, act: impl Fn(FeatureStore, Work) -> F, done: impl Fn(&Self) -> bool) -> bool
    where
        F: Future<Output = ()> + Send + 'static,
    {
        for (process, slot) in self.world.processes.iter().zip(&self.slots) {
            if let Some(store) = slot.lock().clone() {
                drop(process.runtime.spawn(act(store, self.work.clone())));
            }
        }
        let late = self.world.time() + LATE;
        while !done(self) {
            if self.world.time() > late || self.is_over() {
                return false;
            }
            self.world.advance();
        }
        true
    }

    fn blame(&self, what: impl FnOnce() -> String) {
        if !self.is_over() {
            self.world.outside.judge.lock().blame(what());
        }
    }

    /// Everything that waits is offered, and its bytes are there.
    fn use_up(&mut self) {
        let unused = |run: &Self| run.world.outside.judge.lock().unused();
        if !self.until(consume, |run| unused(run).is_empty()) {
            let left = unused(self);
            self.blame(|| format!("liveness: nobody is offered {left:?}"));
        }
    }

    /// The processes close their stores, and another one clears up: then nothing is left.
    fn clear_up(&mut self) {
        let closed = Arc::new(AtomicUsize::new(0));
        let count = self.slots.len();
        let close = |store: FeatureStore, work: Work| {
            let closed = Arc::clone(&closed);
            async move {
                let ended = store.close(LATE / 2).await;
                if let Err(error) = ended {
                    work.outside
                        .judge
                        .lock()
                        .blame(format!("liveness: a store does not close: {error:?}"));
                }
                let lent = store.pool().usage().lent;
                if lent > 0 {
                    work.outside
                        .judge
                        .lock()
                        .blame(format!("FS5: {lent} bytes of the pool are lent for ever"));
                }
                closed.fetch_add(1, Ordering::Relaxed);
            }
        };
        if !self.until(close, |_| closed.load(Ordering::Relaxed) == count) {
            self.blame(|| "liveness: a store never closes".to_owned());
            return;
        }
        match self.start() {
            Ok((process, slot)) => (self.world.processes, self.slots) = (vec![process], vec![slot]),
            Err(error) => return self.blame(|| error.to_string()),
        }
        let opened = |run: &Self| run.slots.iter().all(|slot| slot.lock().is_some());
        if !self.until(|_, _| async {}, opened) {
            self.blame(|| "liveness: a store never opens".to_owned());
            return;
        }
        let records = |run: &Self| Records::of_store(&run.world.outside.store, run.world.outside.etcd.dump());
        let nothing_left =
            |run: &Self| records(run).left_over().is_empty() && run.world.outside.judge.lock().letters() == 0;
        if !self.until(abandon, nothing_left) {
            let left = records(self).left_over().join(", ");
            self.blame(|| format!("LC6: records are left: {left}"));
            return;
        }
        let objects = self.world.outside.cluster.objects();
        for key in &objects {
            self.world
                .outside
                .judge
                .lock()
                .left_behind(key, "FR1: no record names it");
        }
        if !objects.is_empty() && !self.until(audit, |run| run.world.outside.cluster.objects().is_empty()) {
            self.blame(|| format!("the audit leaves {objects:?}"));
        }
    }
}

async fn consume(store: FeatureStore, work: Work) {
    loop {
        for group in &work.plan.groups {
            let taken = store.lease_next(group, 4, Duration::from_millis(300)).await;
            for lease in taken.unwrap_or_default() {
                let (sample, token) = (lease.reference(), lease.token());
                let began = work.outside.judge.lock().now;
                let answer = store.get(&lease, Wanted::All, CALL).await;
                work.outside.judge.lock().got(&sample, token, began, &answer);
                if answer.is_ok() {
                    work.outside.judge.lock().asks(&sample, token);
                    store.ack(&[lease], CALL).await;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn abandon(store: FeatureStore, work: Work) {
    loop {
        if let Ok(samples) = work.all_samples() {
            store.abort(&samples, CALL).await;
        }
        if let Ok(letters) = store.records(&RecordQuery::of(Stage::Dead), None, 64, CALL).await {
            let letters: Vec<SampleRef> = letters.records.into_iter().map(|found| found.sample).collect();
            store.drop_dead(&letters, CALL).await;
        }
        // The next one clears up what this one does not.
        drop(store.sweep(CALL).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn audit(store: FeatureStore, work: Work) {
    let options = OrphanAudit {
        read_only: false,
        force: true,
        most_share: 1.0,
        ..OrphanAudit::default()
    };
    loop {
        if store
            .audit_orphans(options.clone(), CALL)
            .await
            .is_ok_and(|report| report.orphans > 0)
        {
            work.outside.judge.lock().reach(State::Orphan);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
