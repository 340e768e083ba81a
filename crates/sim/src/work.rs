//! What the processes of a world do: several tasks each, which put, take, get and answer, in an order that the seed draws.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, DType, Error, Result, Rng, SampleId, SeededRng, TensorName, TensorSpec};
use tensorhold_custody::{GroupName, Publication};
use tensorhold_engine::HostMemory;
use tensorhold_features::{FeatureConfig, FeatureStore, Lease, PutItem, TensorIn, TensorOut, Wanted};
use tensorhold_index::{IndexConfig, RecordQuery, SampleRef, Stage, TxnIndex};

use crate::etcd::Etcd;
use crate::faults::Fault;
use crate::judge::{Asked, State, pattern};
use crate::mooncake::{CallLags, Mooncake};
use crate::world::{Outside, Process};

/// What the seed has drawn for a world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) processes: usize,
    pub(crate) tasks: u64,
    pub(crate) samples: u64,
    pub(crate) groups: Vec<GroupName>,
    pub(crate) most_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) holders: usize,
    pub(crate) budget: Option<u64>,
    /// How long a task rests at most between two steps, in milliseconds.
    pub(crate) rest: u64,
    pub(crate) call: Duration,
    pub(crate) retain: u32,
    pub(crate) index: IndexConfig,
    pub(crate) features: FeatureConfig,
}

impl Plan {
    pub(crate) fn draw(rng: &dyn Rng) -> Result<Self> {
        let one_of = |choices: &[u64]| {
            let at = usize::try_from(rng.below(choices.len() as u64)).unwrap_or(0);
            choices.get(at).copied().unwrap_or_default()
        };
        let millis = |choices: &[u64]| Duration::from_millis(one_of(choices));
        let size = |choices: &[u64]| usize::try_from(one_of(choices)).unwrap_or(1);
        let groups = (0..one_of(&[0, 1, 1, 1, 2, 3])).map(|n| GroupName::new(format!("g{n}")));
        let most_bytes = one_of(&[1, 200, 6000, 40_000]);
        let index = IndexConfig {
            session_ttl: millis(&[2000, 3000, 5000]),
            tick: millis(&[100, 250, 500]),
            lost_ticks: one_of(&[2, 8, 30]),
            reserve_ticks: one_of(&[10, 40, 600]),
            grace_ticks: one_of(&[0, 2]),
            dead_ticks: one_of(&[0, 0, 8, 60]),
            dead_most: size(&[1, 3, 1000]),
        };
        let features = FeatureConfig {
            sweep_every: Some(millis(&[200, 500, 1000])),
            chunk_bytes: 4096,
            lease_ticks: one_of(&[2, 6, 12, 40]),
            pool_bytes: one_of(&[256 << 10, 8 << 20]),
            max_in_flight: size(&[2, 16]),
            call_within: millis(&[500, 1000, 3000]),
            loss_grace: millis(&[500, 2000]),
            free_queue: size(&[2, 4096]),
            checksum: !rng.chance(150),
            ..FeatureConfig::new("s".parse()?)
        };
        Ok(Self {
            processes: size(&[1, 2, 3, 4]),
            tasks: one_of(&[1, 2, 4]),
            samples: one_of(&[1, 3, 8, 30]),
            groups: groups.collect::<Result<_>>()?,
            most_bytes,
            segment_bytes: one_of(&[256 << 10, 4 << 20]),
            holders: size(&[1, 2, 3]),
            budget: rng.chance(300).then(|| 4096 + 10 * most_bytes),
            rest: one_of(&[3, 20, 60, 400]),
            call: millis(&[300, 2000, 2000, 6000]),
            retain: u32::try_from(one_of(&[0, 0, 300])).unwrap_or(0),
            index,
            features,
        })
    }
}

/// A store in a process, once it is open.
pub(crate) type Slot = Arc<Mutex<Option<FeatureStore>>>;

/// What the tasks of all processes share.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) outside: Arc<Outside>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) stop: Arc<AtomicBool>,
    puts: Arc<AtomicU64>,
}

impl Work {
    pub(crate) fn new(outside: &Arc<Outside>, plan: Plan) -> Self {
        Self {
            outside: Arc::clone(outside),
            plan: Arc::new(plan),
            stop: Arc::default(),
            puts: Arc::default(),
        }
    }

    /// Opens the store in a process, and starts its tasks.
    pub(crate) fn begin(&self, process: &Process) -> Slot {
        let slot = Slot::default();
        let (me, opened) = (self.clone(), Arc::clone(&slot));
        let (clock, link) = (Arc::clone(&process.clock), Arc::clone(&process.link));
        let seed = self.outside.rng.next_u64();
        drop(process.runtime.spawn(async move {
            let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
            let shared: Arc<dyn Clock> = clock.clone();
            let store = loop {
                let etcd = Arc::new(Etcd::new(&me.outside, &clock, &link));
                let index = TxnIndex::new(
                    etcd,
                    &me.outside.store,
                    me.plan.index.clone(),
                    Arc::clone(&shared),
                    Arc::clone(&rng),
                );
                let opened = FeatureStore::open_simulated(
                    Arc::new(Mooncake::new(&me.outside, &link)),
                    Arc::new(index),
                    me.plan.features.clone(),
                    Arc::clone(&shared),
                    Arc::clone(&rng),
                    Arc::new(CallLags(Arc::clone(&me.outside))),
                );
                match opened.await {
                    Ok(store) => break store,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            };
            while let Some(bytes) = me.plan.budget {
                if store.set_budget(bytes, me.plan.call).await.is_ok() {
                    me.outside.judge.lock().reach(State::Budget);
                    break;
                }
            }
            *opened.lock() = Some(store.clone());
            for task in 0..me.plan.tasks {
                let hands = Hands {
                    work: me.clone(),
                    store: store.clone(),
                    rng: SeededRng::new(seed ^ task),
                    held: Vec::new(),
                    tensors: Vec::new(),
                };
                drop(tokio::spawn(hands.run()));
            }
        }));
        slot
    }

    fn sample(&self, rng: &dyn Rng) -> Result<SampleId> {
        SampleId::new(format!("run/{}", rng.below(self.plan.samples)))
    }

    pub(crate) fn all_samples(&self) -> Result<Vec<SampleId>> {
        (0..self.plan.samples)
            .map(|n| SampleId::new(format!("run/{n}")))
            .collect()
    }

    fn item(&self, rng: &dyn Rng) -> Result<(u64, PutItem)> {
        let put = self.puts.fetch_add(1, Ordering::Relaxed);
        let mut tensors = Vec::new();
        for n in 0..1 + rng.below(3) {
            let name = format!("t{put}.{n}");
            let len = 1 + rng.below(self.plan.most_bytes);
            let bytes = pattern(&name, usize::try_from(len).unwrap_or(1));
            let spec = TensorSpec::new(TensorName::new(&name)?, DType::Uint8, [len])?;
            tensors.push((spec, bytes));
        }
        let into = |(spec, bytes): (TensorSpec, Vec<u8>)| Ok::<_, Error>(TensorIn::new(spec, lent(bytes)?));
        let item = PutItem {
            sample: self.sample(rng)?,
            tensors: tensors.into_iter().map(into).collect::<Result<_>>()?,
            publication: Publication {
                groups: self.plan.groups.clone(),
                retain: rng.chance(self.plan.retain),
                max_attempts: 1 + u32::try_from(rng.below(3)).unwrap_or(0),
            },
        };
        Ok((put, item))
    }
}

/// Memory of a caller.
#[expect(
    unsafe_code,
    reason = "memory is lent to a store by its address, as callers of the store do"
)]
fn lent(bytes: Vec<u8>) -> Result<HostMemory> {
    let mut bytes = bytes.into_boxed_slice();
    let (base, length) = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the box owns these bytes, is dropped with the memory, and is not touched otherwise.
    unsafe { HostMemory::lent(base, length, bytes) }
}

/// A task of a process.
struct Hands {
    work: Work,
    store: FeatureStore,
    rng: SeededRng,
    held: Vec<Lease>,
    /// Tensors that were got, and are looked at again later.
    tensors: Vec<TensorOut>,
}

impl Hands {
    async fn run(mut self) {
        while !self.work.stop.load(Ordering::Relaxed) {
            let act = self.rng.below(100);
            if let Err(error) = self.step(act).await {
                let mut judge = self.work.outside.judge.lock();
                judge.kinds("a step", Some(&error));
            }
            let rest = Duration::from_millis(self.rng.below(self.work.plan.rest));
            tokio::time::sleep(rest).await;
        }
    }

    fn group(&self) -> Option<GroupName> {
        let groups = &self.work.plan.groups;
        let at = usize::try_from(self.rng.below(groups.len() as u64)).unwrap_or(0);
        groups.get(at).cloned()
    }

    /// Waits for an operation, unless its caller leaves before.
    async fn stay<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        if !self.work.outside.hits(Fault::CallerLeaves) {
            return Some(operation.await);
        }
        let patience = Duration::from_millis(self.rng.below(40));
        tokio::time::timeout(patience, operation).await.ok()
    }

    async fn step(&mut self, act: u64) -> Result<()> {
        let call = self.work.plan.call;
        match act {
            0..28 => self.put().await?,
            28..46 => self.take().await,
            46..52 => self.read().await?,
            52..70 => self.get().await,
            70..78 => self.answer(Asked::Ack).await,
            78..82 => self.answer(Asked::Nack).await,
            82..84 => {
                let leases = self.some_held();
                for answer in self.store.release(&leases, call).await {
                    self.work.outside.judge.lock().kinds("release", answer.as_ref().err());
                }
            }
            84..87 => {
                self.store.renew(&self.held, call).await;
            }
            87 => {
                let readers: Vec<Lease> = self
                    .some_held()
                    .into_iter()
                    .filter(|lease| lease.group().is_none())
                    .collect();
                self.store.use_up(&readers, call).await;
            }
            88..90 => {
                let sample = self.work.sample(&self.rng)?;
                self.store.abort(&[sample], call).await;
            }
            90..92 => {
                let found = self.find().await?;
                let some: Vec<SampleRef> = found.into_iter().take(1).collect();
                if self.rng.chance(500) {
                    self.store.retire(&some, call).await;
                } else {
                    self.store.reopen(&some, call).await;
                }
            }
            92..94 => {
                let letters = self.store.records(&RecordQuery::of(Stage::Dead), None, 4, call).await?;
                let letters: Vec<SampleRef> = letters.records.into_iter().map(|found| found.sample).collect();
                if self.rng.chance(700) {
                    self.store.requeue(&letters, call).await;
                } else {
                    self.store.drop_dead(&letters, call).await;
                }
            }
            94..96 => drop(self.some_held()),
            96 => drop(self.store.sweep(call).await),
            97 => {
                let health = self.store.health(call).await;
                let mut judge = self.work.outside.judge.lock();
                if health.sessions_opened > 1 {
                    judge.reach(State::SessionLost);
                }
            }
            98 => {
                if let Ok(Some(used)) = self.store.budget_use(call).await
                    && !used.waiting.is_empty()
                {
                    self.work.outside.judge.lock().reach(State::Waits);
                }
            }
            _ => drop(self.store.drain(call).await),
        }
        Ok(())
    }

    async fn put(&mut self) -> Result<()> {
        let count = 1 + self.rng.below(3);
        let items = (0..count)
            .map(|_| self.work.item(&self.rng))
            .collect::<Result<Vec<_>>>()?;
        let (numbers, items): (Vec<u64>, Vec<PutItem>) = items.into_iter().unzip();
        let putting = self.store.put_many(items, self.work.plan.call);
        if let Some(answers) = self.stay(putting).await {
            let mut judge = self.work.outside.judge.lock();
            for (number, answer) in numbers.into_iter().zip(&answers) {
                judge.put(number, answer);
            }
        }
        Ok(())
    }

    async fn take(&mut self) {
        let Some(group) = self.group() else { return };
        let count = 1 + usize::try_from(self.rng.below(4)).unwrap_or(0);
        let patience = Duration::from_millis(1 + self.rng.below(1500));
        let taking = async {
            if self.rng.chance(300) {
                self.store.lease_ready(&group, count, patience).await
            } else {
                self.store.lease_next(&group, count, patience).await
            }
        };
        let Some(taken) = self.stay(taking).await else { return };
        let mut judge = self.work.outside.judge.lock();
        judge.kinds("take", taken.as_ref().err());
        let taken = taken.unwrap_or_default();
        if taken.is_empty() {
            judge.reach(State::NothingReady);
        }
        for lease in &taken {
            // A lease that is not looked at goes back as if it had never been taken.
            if !self.rng.chance(100) {
                judge.took(&lease.reference(), lease.token(), Some(&group));
            }
        }
        drop(judge);
        self.held.extend(taken);
    }

    async fn find(&self) -> Result<Vec<SampleRef>> {
        let samples = self.work.all_samples()?;
        let found = self.store.find(&samples, self.work.plan.call).await?;
        Ok(found.into_iter().flatten().map(|found| found.reference).collect())
    }

    async fn read(&mut self) -> Result<()> {
        let found = self.find().await?;
        let first = usize::try_from(self.rng.below(found.len() as u64)).unwrap_or(0);
        let some: Vec<SampleRef> = found.into_iter().skip(first).take(2).collect();
        let reading = self.store.lease_shared(&some, self.work.plan.call);
        let Some(leases) = self.stay(reading).await else {
            return Ok(());
        };
        let mut judge = self.work.outside.judge.lock();
        for lease in leases.into_iter().flatten() {
            judge.took(&lease.reference(), lease.token(), None);
            self.held.push(lease);
        }
        Ok(())
    }

    async fn get(&mut self) {
        self.look_again();
        let Some(lease) = self.pick() else { return };
        let (sample, token) = (lease.reference(), lease.token());
        let began = self.work.outside.judge.lock().now;
        let getting = self.store.get(&lease, Wanted::All, self.work.plan.call);
        let Some(answer) = self.stay(getting).await else { return };
        self.work.outside.judge.lock().got(&sample, token, began, &answer);
        self.tensors.extend(answer.unwrap_or_default());
    }

    /// Nothing has written to what was got.
    fn look_again(&mut self) {
        let mut judge = self.work.outside.judge.lock();
        if !self.tensors.is_empty() {
            judge.same_bytes(&self.tensors);
            judge.reach(State::GotLater);
        }
        self.tensors.clear();
    }

    fn pick(&self) -> Option<Lease> {
        let at = usize::try_from(self.rng.below(self.held.len() as u64)).unwrap_or(0);
        self.held.get(at).cloned()
    }

    /// Lets go of some leases.
    fn some_held(&mut self) -> Vec<Lease> {
        let keep = usize::try_from(self.rng.below(self.held.len() as u64 + 1)).unwrap_or(0);
        self.held.split_off(keep)
    }

    async fn answer(&mut self, asked: Asked) {
        let leases: Vec<Lease> = self
            .some_held()
            .into_iter()
            .filter(|lease| lease.group().is_some())
            .collect();
        let named: Vec<_> = leases.iter().map(|lease| (lease.reference(), lease.token())).collect();
        if asked == Asked::Ack {
            let mut judge = self.work.outside.judge.lock();
            for (sample, token) in &named {
                judge.asks(sample, *token);
            }
        }
        let call = self.work.plan.call;
        let answering = async {
            match asked {
                Asked::Ack => self.store.ack(&leases, call).await,
                Asked::Nack => self.store.nack(&leases, call).await,
            }
        };
        let Some(answers) = self.stay(answering).await else {
            return;
        };
        let mut judge = self.work.outside.judge.lock();
        for ((sample, token), answer) in named.into_iter().zip(answers) {
            judge.answered(asked, sample, token, answer.as_ref().err());
        }
    }
}
