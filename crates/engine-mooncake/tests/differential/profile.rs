//! Which cluster a seed gets, and what is likely to happen on it.

use std::time::Duration;

use tensorhold_engine::MemoryConfig;
use tensorhold_testkit::ClusterBuilder;

use crate::common::plain;
use crate::op::Call;

const MIB: usize = 1 << 20;
/// Seeds repeat their profiles after this many.
pub const PROFILES: u64 = 24;

/// What a seed is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Objects of all sizes and keys of all kinds in a pool with room.
    Wide,
    /// Pinned objects of 4 to 8 MiB in a pool of 64: often full.
    Filling,
    /// Evictable objects in a pool that is too small for them.
    Evicting,
}

/// A seed's cluster and its weights.
#[derive(Clone, Debug)]
pub struct Profile {
    pub scene: Scene,
    pub holders: usize,
    pub segment_mib: u64,
    /// Whether some objects have two copies.
    pub two_copies: bool,
    pub odd_keys: bool,
    /// How many writers die.
    pub abandons: usize,
    /// The most objects, and their bytes, that are to be there at once.
    pub most_live: usize,
    pub most_live_bytes: usize,
    /// The most objects of one put or get.
    pub most_put: usize,
    /// The most bytes of one put or get.
    pub most_bytes: usize,
    /// Percent of the pool that one eviction frees.
    pub eviction_ratio: u32,
    /// How often each call is made; none is an odd one.
    pub weights: [(Option<Call>, usize); 7],
}

const fn weights(put: usize, get: usize, remove: usize, probe: usize, odd: usize) -> [(Option<Call>, usize); 7] {
    [
        (Some(Call::Put), put),
        (Some(Call::Get), get),
        (Some(Call::Remove), remove),
        (Some(Call::Probe), probe),
        (Some(Call::Promote), 4),
        (Some(Call::Usage), 6),
        (None, odd),
    ]
}

impl Profile {
    /// The profile of a seed: of 24 in a row, four fill their pool, two evict, four have dead writers, four have two
    /// holders and objects with two copies.
    pub fn of(seed: u64) -> Self {
        let wide = Self {
            scene: Scene::Wide,
            holders: 1,
            segment_mib: 128,
            two_copies: true,
            odd_keys: true,
            abandons: 0,
            most_live: 60,
            most_live_bytes: 64 * MIB,
            most_put: 16,
            most_bytes: 12 * MIB,
            eviction_ratio: 5,
            weights: weights(34, 30, 12, 8, 8),
        };
        match seed % PROFILES {
            0 | 5 | 10 | 15 => Self {
                scene: Scene::Filling,
                segment_mib: 64,
                odd_keys: false,
                most_live_bytes: 96 * MIB,
                most_put: 4,
                most_bytes: 24 * MIB,
                weights: weights(40, 20, 20, 8, 2),
                ..wide
            },
            20 | 22 => Self {
                scene: Scene::Evicting,
                segment_mib: 64,
                two_copies: false,
                most_live: 60,
                most_live_bytes: usize::MAX,
                most_put: 4,
                eviction_ratio: 25,
                weights: weights(30, 40, 8, 14, 2),
                ..wide
            },
            4 | 9 | 14 | 19 => Self { abandons: 3, ..wide },
            2 | 7 | 13 | 16 => Self { holders: 2, ..wide },
            _ => wide,
        }
    }

    pub fn capacity(&self) -> u64 {
        (self.segment_mib << 20) * self.holders as u64
    }

    /// Bytes in use above which both engines evict.
    pub fn watermark(&self) -> u64 {
        self.capacity() / 100 * u64::from(MemoryConfig::default().high_watermark)
    }

    /// The real cluster. What time brings is put off so far that a busy machine changes nothing.
    pub fn cluster(&self) -> ClusterBuilder {
        let (discard, release) = (
            self.memory().put_start_discard_timeout,
            self.memory().put_start_release_timeout,
        );
        plain()
            .holders(self.holders)
            .segment_mib(self.segment_mib)
            .lease_ttl(self.memory().lease_ttl)
            .master_flag(format!("--eviction_ratio={}", f64::from(self.eviction_ratio) / 100.0))
            .master_flag(format!("--put_start_discard_timeout_sec={}", discard.as_secs()))
            .master_flag(format!("--put_start_release_timeout_sec={}", release.as_secs()))
    }

    /// The memory cluster that is like it. The watermark is the default on both sides.
    pub fn memory(&self) -> MemoryConfig {
        MemoryConfig {
            holders: self.holders,
            segment_bytes: self.segment_mib << 20,
            lease_ttl: Duration::from_secs(5),
            eviction_ratio: self.eviction_ratio,
            put_start_discard_timeout: Duration::from_secs(1000),
            put_start_release_timeout: Duration::from_secs(2000),
            ..MemoryConfig::default()
        }
    }
}
