//! The settings of a prefetcher.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, Result};

/// The way by which objects on SSD come to memory. `docs/adr/0010-prefetch.md` has both measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// This process reads them ahead into registered memory of its own. Fast, the same at any load of the cluster's
    /// DRAM, and of use to this process only.
    #[default]
    Buffer,
    /// The engine promotes them to DRAM of a holder, at the holders' next heartbeats. Of use to all processes; it needs
    /// room in DRAM, and a master and holders that are set up for it.
    Promote,
}

/// How a [`crate::PrefetchEngine`] works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrefetchConfig {
    /// The way to memory. Default: [`Route::Buffer`].
    pub route: Route,
    /// The most memory for objects read ahead. It is registered when the first one is. Default: 256 MiB.
    pub buffer_bytes: usize,
    /// How long an object that was read ahead is kept for its reader; after that it may give way to another one.
    /// Default: 10 s.
    #[serde(with = "tensorhold_core::duration")]
    pub keep: Duration,
    /// Threads that read ahead. They are started when the first object is asked for. Default: 2.
    pub workers: usize,
    /// The most objects that wait to be begun. Further ones are refused. Default: 4096.
    pub queue: usize,
    /// The most objects of one read. A read that is under way delays what is asked for next. Default: 16.
    pub batch_objects: usize,
    /// The most bytes of one read, if it has several objects. Default: 32 MiB.
    pub batch_bytes: u64,
    /// How long an object may wait before it is begun. Default: 2 s.
    #[serde(with = "tensorhold_core::duration")]
    pub begin_within: Duration,
    /// How long an attempt may take once it is begun. Default: 5 s.
    #[serde(with = "tensorhold_core::duration")]
    pub within: Duration,
    /// How long an outcome is remembered, so that the same question does not cause the same work again. Default: 1 s.
    #[serde(with = "tensorhold_core::duration")]
    pub remember: Duration,
    /// How long nothing is begun after memory was short. Default: 500 ms.
    #[serde(with = "tensorhold_core::duration")]
    pub cool_down: Duration,
    /// For [`Route::Promote`]: how often the progress of all promotions is looked up. Default: 25 ms.
    #[serde(with = "tensorhold_core::duration")]
    pub look_every: Duration,
    /// For [`Route::Promote`]: the share of DRAM in use above which nothing is promoted. Default: 0.85, below the engine's
    /// own high watermark (0.90), above which it evicts.
    pub dram_below: f64,
    /// How long the answer of a probe may be used again. Default: none, every question is asked.
    #[serde(with = "tensorhold_core::duration")]
    pub cache_for: Duration,
    /// Whether to find out which tier served each get, also where no probe has told: one more key in a later request.
    /// Default: no.
    pub count_sources: bool,
    /// How long a get waits for objects that are on their way. Default: not at all.
    #[serde(with = "tensorhold_core::duration")]
    pub wait_for_prefetch: Duration,
}

impl Default for PrefetchConfig {
    fn default() -> Self {
        Self {
            route: Route::default(),
            buffer_bytes: 256 << 20,
            keep: Duration::from_secs(10),
            workers: 2,
            queue: 4096,
            batch_objects: 16,
            batch_bytes: 32 << 20,
            begin_within: Duration::from_secs(2),
            within: Duration::from_secs(5),
            remember: Duration::from_secs(1),
            cool_down: Duration::from_millis(500),
            look_every: Duration::from_millis(25),
            dram_below: 0.85,
            cache_for: Duration::ZERO,
            count_sources: false,
            wait_for_prefetch: Duration::ZERO,
        }
    }
}

impl PrefetchConfig {
    /// Refuses settings that cannot work.
    pub fn validate(&self) -> Result<()> {
        let refuse =
            |setting: &'static str, why: &str| Err(Error::invalid("prefetch.open", why).with("setting", setting));
        if self.buffer_bytes == 0 {
            return refuse(
                "buffer_bytes",
                "objects read ahead need memory; allow at least one object's bytes",
            );
        }
        if self.workers == 0 {
            return refuse(
                "workers",
                "without a thread nothing is ever read ahead; allow at least one",
            );
        }
        if self.queue == 0 || self.batch_objects == 0 {
            return refuse("queue", "without room for one object nothing is ever read ahead");
        }
        if self.within.is_zero() || self.begin_within.is_zero() {
            return refuse("within", "an attempt needs some time");
        }
        if self.look_every.is_zero() {
            return refuse(
                "look_every",
                "promotions cannot be looked up all the time; allow some milliseconds",
            );
        }
        if !(0.0..=1.0).contains(&self.dram_below) {
            return refuse("dram_below", "a share of DRAM lies between 0 and 1");
        }
        Ok(())
    }
}
