use std::collections::BTreeSet;

use proptest::prelude::*;
use tensorhold_core::{Clock, ManualClock};

use super::*;

/// What happens to a list, to the takes of this process, and elsewhere. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// A sample becomes ready: it is put, or given back.
    Put(usize),
    /// Another process takes one.
    TakenElsewhere(usize),
    /// The watch tells this many of the changes that it has not told.
    Tell(usize),
    /// A take of up to this many begins.
    Take(usize),
    /// One that waits leaves.
    Leave(usize),
    /// One leases what it has reached. What comes of it is told later.
    Lease(usize),
    /// It is told.
    Told(usize),
    /// It is not told, because the index does not answer or its caller has left.
    Untold(usize),
    WatchFails,
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..3_usize;
    prop_oneof![
        5 => which.clone().prop_map(Step::Put),
        2 => which.clone().prop_map(Step::TakenElsewhere),
        4 => (1..4_usize).prop_map(Step::Tell),
        4 => (1..3_usize).prop_map(Step::Take),
        1 => which.clone().prop_map(Step::Leave),
        3 => which.clone().prop_map(Step::Lease),
        3 => which.clone().prop_map(Step::Told),
        1 => which.prop_map(Step::Untold),
        1 => Just(Step::WatchFails),
    ]
}

/// A store with one list, and the takes of one process.
struct World {
    runtime: tokio::runtime::Runtime,
    clock: ManualClock,
    list: Arc<ReadyList>,
    /// What is in the list.
    ready: BTreeSet<usize>,
    version: u64,
    /// Changes that the watch has not told.
    untold: VecDeque<Shown>,
    waiting: Vec<WaitingTake>,
    leasing: Vec<(Reached, Option<Vec<Tried>>)>,
}

fn name(sample: usize) -> SampleId {
    SampleId::new(format!("s{sample}")).expect("a name")
}

/// A sample that is given back keeps its generation, and its place in the list.
fn entry(sample: usize) -> ReadyEntry {
    let generation = Generation::new(1).expect("not zero");
    ReadyEntry {
        sample: SampleRef {
            sample: name(sample),
            generation,
        },
        order: generation,
        copied: None,
    }
}

impl World {
    fn new() -> Self {
        Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime"),
            clock: ManualClock::new(),
            list: Arc::default(),
            ready: BTreeSet::new(),
            version: 0,
            untold: VecDeque::new(),
            waiting: Vec::new(),
            leasing: Vec::new(),
        }
    }

    fn remove(&mut self, sample: usize) -> bool {
        let was_there = self.ready.remove(&sample);
        if was_there {
            self.version += 1;
            let order = Generation::new(1).expect("not zero");
            self.untold.push_back(Shown::Deleted(name(sample), order));
        }
        was_there
    }

    fn tell(&mut self, count: usize) {
        let now = self.clock.now();
        let count = count.min(self.untold.len());
        let shown: Vec<Shown> = self.untold.drain(..count).collect();
        // Without a watch nobody is told.
        if self.list.known.lock().waits.is_watched() {
            self.list.changed(shown, now);
        }
    }

    fn take(&mut self, count: usize) {
        let now = self.clock.now();
        let watch = match self.list.take_watched(count, now) {
            Some(Some(reached)) => return self.leasing.push((reached, None)),
            Some(None) => None,
            None => {
                // It reads the whole list.
                let all: Vec<ReadyEntry> = self.ready.iter().map(|sample| entry(*sample)).collect();
                self.list.leave(all, now);
                self.list.was_read(now);
                let taken = self.list.take(count, now, false);
                self.list.hand_out_rest(now);
                match taken {
                    Some(reached) => return self.leasing.push((reached, None)),
                    // Others of this process are leasing all that there are: it would try those, too.
                    None if !self.ready.is_empty() => return,
                    None => Some(()),
                }
            }
        };
        let (runtime, untold) = (&self.runtime, &mut self.untold);
        let watch = watch.map(|()| {
            || {
                untold.clear();
                WatchTask(runtime.spawn(std::future::pending()))
            }
        });
        match self.list.wait(count, now, watch) {
            Begun::Told(Woken::Take(reached)) => self.leasing.push((reached, None)),
            Begun::Told(_) => {}
            Begun::Waits(waiting) => self.waiting.push(waiting),
        }
    }

    /// The takes that were told something go on.
    fn wake(&mut self) {
        let (mut waiting, mut look) = (Vec::new(), 0);
        for mut take in std::mem::take(&mut self.waiting) {
            match take.told.try_recv() {
                Ok(Woken::Take(reached)) => self.leasing.push((reached, None)),
                Ok(_) => look += 1,
                Err(_) => waiting.push(take),
            }
        }
        self.waiting = waiting;
        (0..look).for_each(|_| self.take(1));
    }

    fn lease(&mut self, which: usize) {
        let Some(at) = which
            .checked_rem(self.leasing.len())
            .filter(|at| self.leasing[*at].1.is_none())
        else {
            return;
        };
        let samples: Vec<SampleId> = self.leasing[at].0.iter().map(|one| one.sample.sample.clone()).collect();
        let tried = samples.into_iter().map(|sample| {
            let number = (0..3).find(|number| name(*number) == sample).expect("one of ours");
            match self.remove(number) {
                true => Tried::Leased(Version(self.version)),
                false => Tried::Gone,
            }
        });
        let tried = tried.collect();
        self.leasing[at].1 = Some(tried);
    }

    fn take_step(&mut self, step: &Step) {
        match *step {
            Step::Put(sample) => {
                if self.ready.insert(sample) {
                    self.version += 1;
                    let put = entry(sample);
                    self.untold.push_back(Shown::Put(Box::new(put), Version(self.version)));
                }
            }
            Step::TakenElsewhere(sample) => drop(self.remove(sample)),
            Step::Tell(count) => self.tell(count),
            Step::Take(count) => self.take(count),
            Step::Leave(which) => {
                if let Some(at) = which.checked_rem(self.waiting.len()) {
                    drop(self.waiting.remove(at));
                }
            }
            Step::Lease(which) => self.lease(which),
            Step::Told(which) | Step::Untold(which) => {
                if let Some(at) = which.checked_rem(self.leasing.len()) {
                    let (reached, tried) = self.leasing.remove(at);
                    match (step, tried) {
                        (Step::Told(_), Some(tried)) => reached.settle(tried),
                        _ => drop(reached),
                    }
                }
            }
            Step::WatchFails => {
                self.list.watch_ended(None);
                self.untold.clear();
            }
        }
    }

    fn settle_all(&mut self) {
        loop {
            self.tell(usize::MAX);
            self.wake();
            if self.untold.is_empty() && self.leasing.is_empty() {
                return;
            }
            while !self.leasing.is_empty() {
                self.lease(0);
                self.take_step(&Step::Told(0));
            }
        }
    }
}

proptest! {
    #[test]
    fn no_take_waits_beside_a_sample_that_it_could_have(
        steps in proptest::collection::vec((step(), any::<bool>()), 0..60),
    ) {
        let mut world = World::new();
        for (step, wake) in &steps {
            world.take_step(step);
            if *wake {
                world.wake();
            }
            let known = world.list.known.lock();
            let waits = &known.waits;
            prop_assert!(known.found.is_empty() || waits.waiting.is_empty(), "RW2 after {step:?}");
        }
        world.settle_all();
        prop_assert!(
            world.waiting.is_empty() || world.ready.is_empty(),
            "{} wait beside {:?}", world.waiting.len(), world.ready
        );
    }
}
