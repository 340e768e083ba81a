//! Every metric of Tensorhold: name, type, labels, meaning. `docs/metrics.md` is made from this.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A count that only grows.
    Counter,
    /// A value that rises and falls. Those of several sources are added up.
    Gauge,
    /// A gauge of which the greatest counts if several sources tell one.
    Greatest,
    /// How often something was how large.
    Histogram,
}

impl Kind {
    /// Its name in the text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge | Self::Greatest => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

macro_rules! families {
    ($($id:ident = $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $id: Family = Family { name: $name, kind: Kind::$kind, labels: &$labels, help: $help };
        )*

        /// All of them.
        pub static ALL: &[&Family] = &[$(&$id),*];
    };
}

families! {
    BUILD = Gauge "tensorhold_build_info" ["version"],
        "1, with the release of Tensorhold that this process runs.";
    OPERATION = Histogram "tensorhold_operation_seconds" ["store", "operation", "outcome"],
        "How long calls of the feature store took, their waits included; of a batch, the outcome is that of its first error.";
    OPERATIONS_IN_FLIGHT = Gauge "tensorhold_operations_in_flight" ["store"],
        "Operations of the feature store that run now.";
    CALLS_IN_FLIGHT = Gauge "tensorhold_blocking_calls_in_flight" ["store"],
        "Engine calls and checksum computations of the feature store that run now.";
    PUT = Counter "tensorhold_samples_put_total" ["store"],
        "Samples put.";
    PUT_BYTES = Counter "tensorhold_put_bytes_total" ["store"],
        "Bytes of samples put.";
    PUT_FAILURES = Counter "tensorhold_put_failures_total" ["store"],
        "Samples whose put failed.";
    PUT_WAITS = Counter "tensorhold_put_waits_for_room_total" ["store"],
        "Times that a put met a full engine and waited.";
    TAKEN = Counter "tensorhold_samples_taken_total" ["store"],
        "Samples taken for a group, or leased for reading.";
    EMPTY_TAKES = Counter "tensorhold_empty_takes_total" ["store"],
        "Takes that waited until their deadline and got no sample.";
    GOT = Counter "tensorhold_samples_got_total" ["store"],
        "Samples got, whole or in part.";
    GOT_BYTES = Counter "tensorhold_got_bytes_total" ["store"],
        "Bytes of samples got.";
    CORRUPT = Counter "tensorhold_gets_corrupt_total" ["store"],
        "Gets that were refused because the bytes that arrived were not the committed ones.";
    FENCED = Counter "tensorhold_gets_fenced_total" ["store"],
        "Gets that were refused because the lease did not hold any more.";
    UNREADABLE = Counter "tensorhold_samples_unreadable_total" ["store"],
        "Samples that could not be read here and were left to other processes, because a later release has put them.";
    ACKED = Counter "tensorhold_samples_acked_total" ["store"],
        "Samples acknowledged.";
    NACKED = Counter "tensorhold_samples_nacked_total" ["store"],
        "Samples handed back.";
    LOST = Counter "tensorhold_samples_lost_total" ["store"],
        "Samples that this process found lost.";
    SUSPECTED = Gauge "tensorhold_suspected_losses" ["store"],
        "Samples that the engine does not have now and that may be lost.";
    MISSING_HOLDERS = Gauge "tensorhold_missing_holders" ["store"],
        "Holders that the engine has listed within the last hour and lists no more; told by the process that looks at them.";
    LEASES = Gauge "tensorhold_leases_held" ["store"],
        "Leases that this process holds and has not answered for.";
    OLDEST_LEASE = Greatest "tensorhold_oldest_lease_seconds" ["store"],
        "The age of the oldest lease that this process holds; 0 without one.";
    RECLAIM = Histogram "tensorhold_reclaim_seconds" ["store"],
        "From the moment at which this process retired a sample until its objects were removed and the index knew it.";
    FREED = Counter "tensorhold_samples_freed_total" ["store"],
        "Samples whose objects this process removed.";
    FREE_FAILURES = Counter "tensorhold_free_failures_total" ["store"],
        "Times that removing a sample's objects failed.";
    LEFT_TO_SWEEPS = Counter "tensorhold_frees_left_to_sweeps_total" ["store"],
        "Removals and releases that found their queue full and were left to a sweep.";
    PENDING_FREES = Gauge "tensorhold_pending_frees" ["store"],
        "Samples whose objects are still to be removed by this process.";
    SWEEPS = Counter "tensorhold_sweeps_total" ["store"],
        "Sweeps that this process made.";
    POOL = Gauge "tensorhold_pool_bytes" ["store", "state"],
        "The pool that gets receive into: `budget`, what it may allocate; `taken`, what it has; `lent`, what of that is in use.";
    REGISTERED = Gauge "tensorhold_registered_bytes" ["store"],
        "Memory of this process that is registered with the engine.";
    STUCK = Gauge "tensorhold_registered_regions_stuck" ["store"],
        "Regions that the engine refused to unregister.";
    SESSIONS = Counter "tensorhold_sessions_opened_total" ["store"],
        "Sessions that this process opened; more than one for a store that was opened once means that the process was cut off.";
    TICK = Greatest "tensorhold_clock_tick" ["store"],
        "The store's shared clock, as this process last saw it.";
    CLOCK_STOOD = Greatest "tensorhold_clock_stood_still_seconds" ["store"],
        "For how long this process has seen the store's shared clock stand at that tick.";
    ENGINE_CALL = Histogram "tensorhold_engine_call_seconds" ["store", "call", "outcome"],
        "How long calls to the engine took, prefetches included.";
    ENGINE_OBJECTS = Counter "tensorhold_engine_objects_total" ["store", "call", "outcome"],
        "Objects in calls to the engine, by what became of each.";
    ENGINE_BYTES = Counter "tensorhold_engine_bytes_total" ["store", "direction"],
        "Bytes that moved to the engine (`out`) and from it (`in`).";
    INDEX_CALL = Histogram "tensorhold_index_call_seconds" ["store", "call", "outcome"],
        "How long calls to the index's store took; `rejected` is a transaction whose conditions did not hold, which is decided anew.";
    INDEX_READS = Counter "tensorhold_index_reads_total" ["store", "kind", "cause"],
        "Reads of keys and of ranges in the index, by what they were for: a sweep, a collect of samples to be freed, or anything else.";
    INDEX_AMBIGUOUS = Counter "tensorhold_index_ambiguous_total" ["store"],
        "Transactions whose answer was lost, so that their outcome had to be found out.";
    GROUP_COMMIT = Histogram "tensorhold_index_request_transactions" [],
        "How many transactions the requests to etcd had.";
    PASSED_OVER = Counter "tensorhold_records_passed_over_total" ["store", "why"],
        "Records that this process could not read: broken ones (`quarantined`), and those of a later release (`later`).";
    CUTS = Counter "tensorhold_index_cuts_total" ["store"],
        "How often this process found that the index was restored to an earlier state or replaced.";
    REFUSES = Greatest "tensorhold_index_refuses" ["store"],
        "1 while the index refuses every call because it was restored; else 0.";
    PREFETCH_ASKED = Counter "tensorhold_prefetch_asked_total" ["store"],
        "Objects that a prefetch was asked for.";
    PREFETCH_BEGUN = Counter "tensorhold_prefetch_begun_total" ["store"],
        "Prefetches of an object that were begun.";
    PREFETCH_ENDED = Counter "tensorhold_prefetch_ended_total" ["store", "outcome"],
        "Prefetches of an object, by how they ended.";
    LOADED = Counter "tensorhold_loaded_objects_total" ["store", "tier"],
        "Objects that gets have loaded, by where they were: `local` (read ahead), `dram`, `ssd`, `unknown`.";
    LOADED_BYTES = Counter "tensorhold_loaded_bytes_total" ["store", "tier"],
        "Bytes of those objects whose tier is known.";
    PREFETCH_BUFFERED = Gauge "tensorhold_prefetch_buffered_objects" ["store"],
        "Objects that were read ahead and not read yet.";
    PREFETCH_BUFFER = Gauge "tensorhold_prefetch_buffer_bytes" ["store"],
        "Bytes of the read-ahead buffer in use.";
    PROBE_REQUESTS = Counter "tensorhold_probe_requests_total" ["store"],
        "Requests that asked where objects are.";
    PROBE_KEYS = Counter "tensorhold_probe_keys_total" ["store"],
        "Keys in those requests.";
    PAGES_PUT = Counter "tensorhold_pages_put_total" ["outcome"],
        "KV pages put, by outcome.";
    PAGES_GOT = Counter "tensorhold_pages_got_total" ["outcome"],
        "KV pages asked for, by outcome.";
    PAGE_BYTES = Counter "tensorhold_page_bytes_total" ["direction"],
        "Bytes of KV pages stored (`out`) and loaded (`in`).";
    PAGE_KEYS = Counter "tensorhold_page_keys_probed_total" ["found"],
        "KV pages that were looked for, by whether they were there.";
    BAD_PAGES = Counter "tensorhold_bad_pages_removed_total" [],
        "Wrong KV pages that were removed from the engine.";
    BAD_PAGES_WAITING = Gauge "tensorhold_bad_pages_waiting" [],
        "Wrong KV pages that could not be removed yet.";
    TIER_OPERATIONS = Counter "tensorhold_tier_operations_total" ["outcome"],
        "Operations of the KV tier, by what happened to them: `accepted` or `refused`, and later `done_whole`, `done_in_part`, `missed`, `corrupt`, `timed_out`, `cancelled`; `advised` counts requests that were told to go on meanwhile.";
    TIER_OPEN = Gauge "tensorhold_tier_operations_open" [],
        "Operations of the KV tier that are open.";
}
