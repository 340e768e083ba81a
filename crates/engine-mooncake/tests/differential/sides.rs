//! The two engines of a seed: the memory engine, and a real cluster that is set up alike.

use std::sync::Arc;

use serde_json::Value;
use tensorhold_core::{Clock, Error, ManualClock, ObjectKey, Result, SystemClock};
use tensorhold_engine::testing::Harness;
use tensorhold_engine::{Engine, MemoryCluster};

use crate::common::{RealHarness, connect};
use crate::flawed::{Flaw, FlawedEngine};
use crate::op::CLIENTS;
use crate::profile::{Profile, Scene};
use crate::side::{Fate, Side};

struct MemoryFate(Arc<MemoryCluster>);

impl Fate for MemoryFate {
    fn abandon(&self, key: &ObjectKey, bytes: u64) -> Result<()> {
        if self.0.abandon_put(key, bytes) {
            Ok(())
        } else {
            Err(Error::internal("memory.abandon", "the put did not begin"))
        }
    }

    fn extents(&self, _keys: &[ObjectKey]) -> Option<Vec<(u64, u64)>> {
        None
    }
}

/// The memory engine, with a flaw if one is wanted.
pub fn memory(profile: &Profile, flaw: Option<Flaw>) -> Side {
    // Time matters only where objects are evicted; elsewhere it stands still.
    let clock: Arc<dyn Clock> = match profile.scene {
        Scene::Evicting => Arc::new(SystemClock::new()),
        Scene::Wide | Scene::Filling => Arc::new(ManualClock::new()),
    };
    let cluster = MemoryCluster::new(profile.memory(), clock);
    let engines = [(); CLIENTS].map(|()| -> Arc<dyn Engine> {
        match flaw {
            Some(flaw) => Arc::new(FlawedEngine::new(cluster.connect(), flaw)),
            None => cluster.connect(),
        }
    });
    Side::new("memory", engines, Box::new(MemoryFate(cluster)), profile.most_bytes)
}

impl Fate for RealHarness {
    fn abandon(&self, key: &ObjectKey, bytes: u64) -> Result<()> {
        self.abandon_put(key, bytes)
    }

    /// As the master's admin endpoint tells it, without side effects.
    fn extents(&self, keys: &[ObjectKey]) -> Option<Vec<(u64, u64)>> {
        let address = &self.cluster.endpoints().admin[0];
        let ask = |path: String| -> Value {
            let mut answer = ureq::get(format!("{address}{path}")).call().expect("an answer");
            serde_json::from_str(&answer.body_mut().read_to_string().expect("text")).expect("json")
        };
        let segments = ask("/get_segments_detail".to_owned());
        let base = segments["segments"][0]["base_address"].as_str().expect("an address");
        let base = u64::from_str_radix(base.trim_start_matches("0x"), 16).expect("a hexadecimal number");
        let names: Vec<_> = keys.iter().map(ObjectKey::as_str).collect();
        let found = ask(format!("/batch_query_keys?keys={}", names.join(",")));
        let copies = names
            .iter()
            .flat_map(|name| found["data"][name]["values"].as_array().expect("copies"));
        let number = |value: &Value| value.as_u64().expect("a number");
        let extents = copies.map(|copy| (number(&copy["buffer_address_"]) - base, number(&copy["size_"])));
        Some(extents.collect())
    }
}

/// A real master with separate holder processes.
pub fn real(profile: &Profile) -> Side {
    let cluster = profile.cluster().start().expect("a cluster");
    let engines = [(); CLIENTS].map(|()| -> Arc<dyn Engine> { Arc::new(connect(&cluster)) });
    Side::new("real", engines, Box::new(RealHarness { cluster }), profile.most_bytes)
}
