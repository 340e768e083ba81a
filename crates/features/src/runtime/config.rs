//! The settings of a [`crate::FeatureStore`].

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use tensorhold_core::key::PAGES_PREFIX;
use tensorhold_core::{Error, Result, StoreId};
use tensorhold_prefetch::PrefetchConfig;

use crate::seal::{Keyring, MIN_CHUNK_BYTES};

/// How a feature store behaves in this process. Everything but the store's name has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureConfig {
    /// The store's name: the first part of every key. Default: none, it must be given.
    pub store: StoreId,
    /// The most engine calls and checksum computations in flight at once. Default: 16.
    #[serde(default = "default_max_in_flight")]
    pub max_in_flight: usize,
    /// How many threads check or decrypt the bytes of one get. Default: 2.
    #[serde(default = "default_streams")]
    pub streams: usize,
    /// Tensors longer than this are stored as several objects, each with a checksum of its own. Default: 16 MiB.
    #[serde(default = "default_chunk_bytes")]
    pub chunk_bytes: u64,
    /// Whether a put computes checksums. A get verifies every checksum that the description has. Default: true.
    #[serde(default = "default_checksum")]
    pub checksum: bool,
    /// How many copies of each object the engine keeps. Default: 1.
    #[serde(default = "default_replicas")]
    pub replicas: u32,
    /// Where the objects of samples may lie. Default: in DRAM.
    #[serde(default)]
    pub residency: Residency,
    /// How samples are read ahead that lie on SSD only. Default: a buffer of 256 MiB, registered when the first one is.
    #[serde(default, skip_serializing)]
    pub prefetch: PrefetchConfig,
    /// The most memory of the pool that gets receive into. It is allocated when it is first needed. A get of more than
    /// half of it that finds the pool in use receives into memory of its own, through a stage. Default: 1 GiB.
    #[serde(default = "default_pool_bytes")]
    pub pool_bytes: u64,
    /// How much of the pool is allocated and touched when the store is opened. Default: 0.
    #[serde(default)]
    pub warm_bytes: u64,
    /// How many ticks of the shared clock a lease lasts. Default: 60.
    #[serde(default = "default_lease_ticks")]
    pub lease_ticks: u64,
    /// How often this process sweeps while that is its turn (module `duty`); none if it never does. At least one process
    /// of a store must take part: nothing expires by itself. Default: 1 s, a tick of the shared clock. The clock moves with
    /// sweeps, so with fewer of them leases last longer than they say.
    #[serde(default = "default_sweep_every", with = "tensorhold_core::duration::option")]
    pub sweep_every: Option<Duration>,
    /// Whether this process is a steward: it sweeps in place of the processes that use the store. Default: false.
    #[serde(default)]
    pub steward: bool,
    /// The most samples that this process frees in a second of those that others have retired; none for no limit.
    /// Default: none.
    #[serde(default)]
    pub frees_per_second: Option<u32>,
    /// How many records one sweep examines. Default: 1,000.
    #[serde(default = "default_sweep_limit")]
    pub sweep_limit: usize,
    /// How many removals may be queued; further ones are left to the next sweep. Default: 4,096.
    #[serde(default = "default_free_queue")]
    pub free_queue: usize,
    /// The deadline of background calls that no caller waits for: removals, and the cleanup after a failed put.
    /// Default: 10 s.
    #[serde(default = "default_call_within", with = "tensorhold_core::duration")]
    pub call_within: Duration,
    /// How long an object of a committed sample must be missing, at every look and with the engine healthy, before the
    /// sample is declared lost. Set it longer than holders take to register again after a restart of the master.
    /// Default: 30 s.
    #[serde(default = "default_loss_grace", with = "tensorhold_core::duration")]
    pub loss_grace: Duration,
    /// Key prefixes that this store may adopt, of objects that other writers name, besides its own name and a slash.
    /// Give no prefix to two stores: an object that both adopt is removed by whichever frees it first. Every process of
    /// a store must have the same list. Default: none.
    #[serde(default)]
    pub adopt_prefixes: Vec<String>,
    /// The keys of a sealed store; none for a plain one. Either every process of a store has keys, or none has. Keys
    /// are neither read from a settings file nor written to one: settings that hold keys cannot be serialized. Default:
    /// none.
    #[serde(
        default,
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "refuse_keys"
    )]
    pub keyring: Option<Keyring>,
    /// Whether a sealed store reads samples of the first scheme, whose seal does not cover their descriptions: any
    /// process that can write to the index can change their shapes. Set it only until the last such sample is gone.
    /// Default: false.
    #[serde(default)]
    pub accept_seal_v1: bool,
    /// The most staging memory, for puts and for gets each: bytes pass through it that do not move straight between
    /// tensor and engine. Those are the bytes of a sealed store, of tensors on a device, and of gets that the pool has no
    /// room for. It is allocated when it is first needed. Default: 128 MiB.
    #[serde(default = "default_stage_bytes")]
    pub stage_bytes: u64,
}

/// Where the objects of a store's samples may lie. A setting of the process that puts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// In DRAM, pinned: nothing but a removal takes them away, and the store cannot hold more than the holders' DRAM.
    #[default]
    Dram,
    /// On SSD once DRAM is full. The engine may evict them from DRAM, so a put counts as committed only when every object
    /// has been seen to have a copy on SSD; that takes a heartbeat of the holders. It needs a master that writes objects
    /// to SSD when they are put (`docs/ssd.md` has the flags).
    Spill,
}

/// Settings are shown and stored; keys must not be. Settings that were read back without their keys would open a plain
/// store.
fn refuse_keys<S: Serializer>(_: &Option<Keyring>, _: S) -> std::result::Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom(
        "settings that hold keys cannot be serialized; take the keyring out and pass it separately",
    ))
}

fn default_max_in_flight() -> usize {
    16
}
fn default_streams() -> usize {
    2
}
fn default_chunk_bytes() -> u64 {
    16 << 20
}
fn default_checksum() -> bool {
    true
}
fn default_replicas() -> u32 {
    1
}
fn default_pool_bytes() -> u64 {
    1 << 30
}
fn default_lease_ticks() -> u64 {
    60
}
#[expect(clippy::unnecessary_wraps, reason = "the type of the setting")]
fn default_sweep_every() -> Option<Duration> {
    Some(Duration::from_secs(1))
}
fn default_sweep_limit() -> usize {
    1000
}
fn default_free_queue() -> usize {
    4096
}
fn default_call_within() -> Duration {
    Duration::from_secs(10)
}
fn default_loss_grace() -> Duration {
    Duration::from_secs(30)
}
fn default_stage_bytes() -> u64 {
    128 << 20
}

/// The smallest chunk: below it, the cost per object outweighs the gain. No smaller than the smallest chunk of the
/// seal.
const MIN_CHUNK: u64 = MIN_CHUNK_BYTES as u64;

impl FeatureConfig {
    /// The defaults, for this store.
    pub fn new(store: StoreId) -> Self {
        Self {
            store,
            max_in_flight: default_max_in_flight(),
            streams: default_streams(),
            chunk_bytes: default_chunk_bytes(),
            checksum: default_checksum(),
            replicas: default_replicas(),
            residency: Residency::default(),
            prefetch: PrefetchConfig::default(),
            pool_bytes: default_pool_bytes(),
            warm_bytes: 0,
            lease_ticks: default_lease_ticks(),
            sweep_every: default_sweep_every(),
            steward: false,
            frees_per_second: None,
            sweep_limit: default_sweep_limit(),
            free_queue: default_free_queue(),
            call_within: default_call_within(),
            loss_grace: default_loss_grace(),
            adopt_prefixes: Vec::new(),
            keyring: None,
            accept_seal_v1: false,
            stage_bytes: default_stage_bytes(),
        }
    }

    /// Checks what can be checked without a cluster.
    pub fn validate(&self) -> Result<()> {
        let refuse =
            |setting: &'static str, why: &str| Err(Error::invalid("features.config", why).with("setting", setting));
        if self.max_in_flight == 0 {
            return refuse("max_in_flight", "at least one call must be allowed at a time");
        }
        if self.streams == 0 {
            return refuse("streams", "a get needs at least one thread that checks its bytes");
        }
        if self.chunk_bytes < MIN_CHUNK {
            return refuse("chunk_bytes", "a chunk has at least 4,096 bytes");
        }
        self.prefetch.validate()?;
        if self.replicas == 0 {
            return refuse("replicas", "an object needs at least one copy");
        }
        if self.lease_ticks == 0 {
            return refuse("lease_ticks", "a lease lasts at least one tick");
        }
        if self.sweep_every.is_some_and(|every| every.is_zero()) {
            return refuse("sweep_every", "give the time between two sweeps, or none for no sweeps");
        }
        if self.frees_per_second == Some(0) {
            return refuse(
                "frees_per_second",
                "give how many samples may be freed in a second, or none for no limit",
            );
        }
        if self.sweep_limit == 0 || self.free_queue == 0 {
            return refuse("sweep_limit, free_queue", "both must be at least one");
        }
        // A sealed object is longer than its plaintext by its tags: at most one part in 256.
        if self.keyring.is_some() && self.stage_bytes < self.chunk_bytes.saturating_add(self.chunk_bytes / 128) {
            return refuse(
                "stage_bytes",
                "the staging memory must hold one sealed object; raise stage_bytes, or lower chunk_bytes",
            );
        }
        if self
            .adopt_prefixes
            .iter()
            .any(|prefix| prefix.is_empty() || PAGES_PREFIX.starts_with(prefix))
        {
            return refuse(
                "adopt_prefixes",
                "a prefix of all keys, or of all KV pages, would let this store remove objects of other owners",
            );
        }
        if self.loss_grace.is_zero() {
            return refuse(
                "loss_grace",
                "one miss is no loss; give the time that holders take to register again, such as 30 s",
            );
        }
        if self.call_within.is_zero() {
            return refuse("call_within", "calls in the background need time, such as 10 s");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_read_from_json_with_defaults_and_without_surprises() {
        let config: FeatureConfig = serde_json::from_str(r#"{"store": "eagle", "lease_ticks": 5}"#).expect("reads");
        let store = StoreId::new("eagle").expect("a name");
        let expected = FeatureConfig {
            lease_ticks: 5,
            ..FeatureConfig::new(store)
        };
        assert_eq!(config, expected);
        config.validate().expect("lawful");
        assert!(serde_json::from_str::<FeatureConfig>(r#"{"store": "eagle", "lease_tics": 5}"#).is_err());
        assert!(
            serde_json::from_str::<FeatureConfig>("{}").is_err(),
            "a store has a name"
        );
    }

    #[test]
    fn keys_are_neither_shown_nor_written_nor_read() {
        let mut config = FeatureConfig::new(StoreId::new("s").expect("a name"));
        assert!(
            !serde_json::to_string(&config)
                .expect("no keys in it")
                .contains("keyring")
        );
        let bytes = *b"thirty-two bytes that are secret";
        let key = crate::seal::StoreKey::from_bytes("k1".parse().expect("an id"), &bytes).expect("a key");
        config.keyring = Some(Keyring::of(key));
        let shown = format!("{config:?}");
        assert!(
            shown.contains("k1") && !shown.contains("secret") && !shown.contains("115, 101, 99"),
            "{shown}"
        );
        assert!(serde_json::to_string(&config).is_err());
        let given = r#"{"store": "s", "keyring": {"k1": "c2VjcmV0"}}"#;
        assert!(serde_json::from_str::<FeatureConfig>(given).is_err());
        config.stage_bytes = config.chunk_bytes;
        assert_eq!(
            config.validate().expect_err("too small").fact("setting"),
            Some("stage_bytes")
        );
    }

    #[test]
    fn unusable_settings_are_refused_by_name() {
        let good = FeatureConfig::new(StoreId::new("s").expect("a name"));
        let bad = |change: fn(&mut FeatureConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config
                .validate()
                .expect_err("refused")
                .fact("setting")
                .map(str::to_owned)
        };
        assert_eq!(bad(|c| c.max_in_flight = 0).as_deref(), Some("max_in_flight"));
        assert_eq!(bad(|c| c.chunk_bytes = 1).as_deref(), Some("chunk_bytes"));
        assert_eq!(
            bad(|c| c.adopt_prefixes = vec![String::new()]).as_deref(),
            Some("adopt_prefixes")
        );
        assert_eq!(bad(|c| c.lease_ticks = 0).as_deref(), Some("lease_ticks"));
        assert_eq!(
            bad(|c| c.sweep_every = Some(Duration::ZERO)).as_deref(),
            Some("sweep_every")
        );
    }
}
