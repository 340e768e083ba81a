//! One test per behaviour of the real engine that Tensorhold relies on, or has to survive.

mod calls;
mod outage;
mod pressure;
mod random;
mod ssd;

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, ManualClock, ObjectKey};

use super::{MemoryCluster, MemoryConfig, MemoryEngine, SsdConfig};
use crate::{Engine, EngineExt, GetOutcome, Pin, Presence, PutOptions, PutOutcome, RemoveOutcome, Usage};

const WITHIN: Duration = Duration::from_secs(1);
const KIB: u64 = 1024;

fn key(text: impl AsRef<str>) -> ObjectKey {
    ObjectKey::new(text).expect("a key")
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A cluster of ten objects of 1 KiB per holder, with a client.
struct Bench {
    clock: Arc<ManualClock>,
    cluster: Arc<MemoryCluster>,
    engine: Arc<MemoryEngine>,
}

impl Bench {
    fn new(config: MemoryConfig) -> Self {
        let clock = Arc::new(ManualClock::new());
        let cluster = MemoryCluster::new(config, clock.clone());
        let engine = cluster.connect();
        Self { clock, cluster, engine }
    }

    fn small(holders: usize) -> Self {
        Self::new(MemoryConfig {
            holders,
            segment_bytes: 10 * KIB,
            ..MemoryConfig::default()
        })
    }

    fn with_ssd(promote_per_heartbeat: u32) -> Self {
        Self::new(MemoryConfig {
            segment_bytes: 10 * KIB,
            ssd: Some(SsdConfig {
                heartbeat: seconds(1),
                promote_per_heartbeat,
                offload_pinned: false,
                ..SsdConfig::default()
            }),
            ..MemoryConfig::default()
        })
    }

    fn wait(&self, n: u64) {
        self.clock.advance(seconds(n));
    }

    fn put_bytes(&self, name: &str, bytes: &[u8], pin: Pin) -> PutOutcome {
        let options = PutOptions {
            pin,
            ..PutOptions::default()
        };
        self.put_with(name, bytes, &options)
    }

    fn put_with(&self, name: &str, bytes: &[u8], options: &PutOptions) -> PutOutcome {
        let region = self.engine.allocate(bytes.len(), WITHIN).expect("memory");
        region.whole().write(0, bytes).expect("fits");
        let outcome = self.engine.put_one(&key(name), &region.whole(), options, WITHIN);
        outcome.expect("a lawful put")
    }

    /// One KiB of the name's first letter.
    fn put(&self, name: &str, pin: Pin) -> PutOutcome {
        self.put_bytes(name, &[name.as_bytes()[0]; 1024], pin)
    }

    fn stored(&self, name: &str, pin: Pin) {
        let outcome = self.put(name, pin);
        assert!(matches!(outcome, PutOutcome::Stored), "{name}: {outcome:?}");
    }

    fn get_into(&self, name: &str, len: usize) -> (GetOutcome, Vec<u8>) {
        let region = self.engine.allocate(len, WITHIN).expect("memory");
        let outcome = self.engine.get_one(&key(name), &region.whole(), WITHIN);
        (outcome.expect("a lawful get"), region.whole().to_vec())
    }

    fn get(&self, name: &str) -> GetOutcome {
        let (outcome, bytes) = self.get_into(name, 1024);
        if matches!(outcome, GetOutcome::Loaded) {
            assert_eq!(bytes, [name.as_bytes()[0]; 1024], "{name}");
        }
        outcome
    }

    fn loads(&self, name: &str) {
        let outcome = self.get(name);
        assert!(matches!(outcome, GetOutcome::Loaded), "{name}: {outcome:?}");
    }

    fn misses(&self, name: &str) {
        let outcome = self.get(name);
        assert!(
            matches!(outcome, GetOutcome::Miss | GetOutcome::Unfinished),
            "{name}: {outcome:?}"
        );
    }

    fn fails(&self, name: &str) {
        match self.get(name) {
            GetOutcome::Failed(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
            outcome => panic!("{name}: {outcome:?}"),
        }
    }

    fn remove(&self, name: &str) -> RemoveOutcome {
        self.engine.remove_one(&key(name), WITHIN).expect("a lawful remove")
    }

    fn probe(&self, name: &str) -> Presence {
        self.engine.probe_one(&key(name), WITHIN).expect("a lawful probe")
    }

    /// Copies in DRAM and on SSD.
    fn copies(&self, name: &str) -> (u32, u32) {
        match self.probe(name) {
            Presence::Present { dram, ssd, .. } => (dram, ssd),
            _ => (0, 0),
        }
    }

    fn usage(&self) -> Usage {
        self.engine.usage(WITHIN).expect("usage")
    }

    fn used(&self) -> u64 {
        self.usage().dram_used
    }
}
