//! Each kind of fault does what it says, and the same seed does it again.

mod kinds;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Error, ErrorKind, ManualClock, ObjectKey, Retry};

use super::{Effect, FaultEngine, FaultKind, FaultPlan, InjectedFault, Operation};
use crate::{
    Engine, EngineExt, GetOutcome, MemoryCluster, MemoryConfig, MemoryEngine, Presence, PromoteOutcome, PutOptions,
    PutOutcome, Region, RemoveOutcome, Transfer,
};

const WITHIN: Duration = Duration::from_secs(1);
const LEN: usize = 10_000;

fn key(i: usize) -> ObjectKey {
    ObjectKey::new(format!("key-{i}")).expect("a key")
}

struct Bench {
    clock: Arc<ManualClock>,
    cluster: Arc<MemoryCluster>,
    plain: Arc<MemoryEngine>,
    engine: FaultEngine<MemoryEngine>,
    region: Region,
}

impl Bench {
    fn new(plan: FaultPlan) -> Self {
        let clock = Arc::new(ManualClock::new());
        let cluster = MemoryCluster::new(MemoryConfig::default(), clock.clone());
        let plain = cluster.connect();
        let engine = FaultEngine::new(plain.clone(), plan, clock.clone());
        let region = engine.allocate(LEN, WITHIN).expect("memory");
        Self {
            clock,
            cluster,
            plain,
            engine,
            region,
        }
    }

    /// A batch of the first `n` keys, each with its own part of the buffers, in two pieces.
    fn batch(&self, n: usize) -> Vec<Transfer> {
        let each = LEN / n;
        let parts = |i: usize| {
            let cut = i * each + each / 3;
            [i * each..cut, cut..(i + 1) * each].map(|range| self.region.span(range).expect("inside"))
        };
        (0..n).map(|i| Transfer::scattered(key(i), parts(i).to_vec())).collect()
    }

    /// Stores the first `n` keys through the wrapped engine, so no fault strikes.
    fn fill(&self, n: usize) {
        self.region.whole().write(0, &vec![7; LEN]).expect("fits");
        let outcomes = self.plain.put(&self.batch(n), &PutOptions::default(), WITHIN);
        assert!(
            outcomes
                .expect("lawful")
                .iter()
                .all(|o| matches!(o, PutOutcome::Stored))
        );
        self.region.whole().write(0, &vec![0; LEN]).expect("fits");
    }

    fn put(&self, n: usize) -> tensorhold_core::Result<Vec<PutOutcome>> {
        self.engine.put(&self.batch(n), &PutOptions::default(), WITHIN)
    }

    fn get(&self, n: usize) -> tensorhold_core::Result<Vec<GetOutcome>> {
        self.engine.get(&self.batch(n), WITHIN)
    }

    fn keys(&self, n: usize) -> Vec<ObjectKey> {
        (0..n).map(key).collect()
    }

    fn effects(&self) -> Vec<Effect> {
        self.engine.faults().iter().map(|fault| fault.effect).collect()
    }
}

fn unavailable(error: &Error, retry: Retry) {
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, retry));
}
