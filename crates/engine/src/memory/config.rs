//! The settings of a memory cluster.

use std::time::Duration;

/// How a [`super::MemoryCluster`] is built and how it behaves. The defaults are those of the real engine, with one
/// small holder and no SSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Processes that contribute memory. Their segments are called `holder-0`, `holder-1` and so on. Default: 1.
    pub holders: usize,
    /// Bytes of DRAM that each holder contributes. Default: 64 MiB.
    pub segment_bytes: u64,
    /// How long a read keeps an object from eviction. Default: 10 s.
    pub lease_ttl: Duration,
    /// Percent of all DRAM in use above which objects are evicted and none is promoted. Default: 90.
    pub high_watermark: u32,
    /// Percent of all DRAM that one eviction frees at least, if it finds that much. Default: 5.
    pub eviction_ratio: u32,
    /// How long after a put met pressure the eviction runs. Default: 10 ms, the interval of the real engine's thread.
    pub eviction_delay: Duration,
    /// The SSD tier. Default: none.
    pub ssd: Option<SsdConfig>,
    /// How long a put that never ended keeps its key from later puts. Default: 30 s.
    pub put_start_discard_timeout: Duration,
    /// How long a put that never ended keeps its space. Default: 600 s.
    pub put_start_release_timeout: Duration,
    /// How long a dead holder's objects still appear to be there. Default: 10 s.
    pub holder_loss_after: Duration,
    /// The most objects in one call. Default: 1024.
    pub max_batch: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            holders: 1,
            segment_bytes: 64 << 20,
            lease_ttl: Duration::from_secs(10),
            high_watermark: 90,
            eviction_ratio: 5,
            eviction_delay: Duration::from_millis(10),
            ssd: None,
            put_start_discard_timeout: Duration::from_secs(30),
            put_start_release_timeout: Duration::from_secs(600),
            holder_loss_after: Duration::from_secs(10),
            max_batch: 1024,
        }
    }
}

/// The SSD tier of a [`super::MemoryCluster`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdConfig {
    /// How often a holder asks the master which objects to offload and to promote; at least a millisecond. Default: 10
    /// s.
    pub heartbeat: Duration,
    /// The most objects that one holder promotes at one heartbeat. Default: 1.
    pub promote_per_heartbeat: u32,
    /// Whether a hit on an object that is on SSD only promotes it to DRAM. Default: true (the real engine's default is
    /// off; a caller that asks for an SSD tier here wants to see it work).
    pub promotion: bool,
    /// Whether hard-pinned objects get an SSD copy too. Default: true, as in the real engine, unless it offloads at
    /// eviction only.
    pub offload_pinned: bool,
}

impl Default for SsdConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(10),
            promote_per_heartbeat: 1,
            promotion: true,
            offload_pinned: true,
        }
    }
}
