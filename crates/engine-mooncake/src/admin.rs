//! The master's admin HTTP port, for the questions that the wheel's module cannot ask without side effects.
//!
//! Asking the module whether an object exists grants a read lease, which keeps garbage alive. Asking it for replicas
//! counts as a hit, which moves objects between tiers. The admin endpoint `batch_query_keys` does neither.
//!
//! The endpoint takes keys as one comma-separated list and splits it *after* unescaping, so a comma in a key cannot be
//! sent at all; [`tensorhold_core::ObjectKey`] refuses such keys from the start. Everything else is percent-escaped. The
//! endpoint knows the default tenant only.
//!
//! After a failover the new leader knows the objects of holders that have never registered with it, and this endpoint tells
//! them like any other. No reader can read them. So a probe compares where the copies are with the holders that are listed,
//! and says which objects it cannot vouch for; the module says whether the engine has those ([`crate::store`]).
//!
//! Of several masters only the leader answers; the others say that they do not lead, and the next one is asked. The
//! master that answered is asked first the next time.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tensorhold_core::{Deadline, Error, ObjectKey, Result, SystemClock};
use tensorhold_engine::{Holder, Listing, Presence, Usage};
use ureq::Body;

use crate::listing::{Part, read_keys};

/// Bounds the length of one request: enough for a few hundred keys, far below the limits of the server and of the URL
/// type.
const MAX_QUERY_BYTES: usize = 16 << 10;
/// Bounds the answer that is read into memory: far above any answer to such a request.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Bounds a list of keys, which is not read into memory: some ten million of Tensorhold's own keys.
const MAX_LIST_BYTES: u64 = 1 << 30;
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// A client of the admin endpoints of one cluster's masters.
#[derive(Debug)]
pub(crate) struct Admin {
    http: ureq::Agent,
    addresses: Vec<String>,
    leader: AtomicUsize,
    clock: SystemClock,
    incarnation: Mutex<Incarnation>,
    /// Where the holders serve transfers that were listed last.
    listed: Mutex<BTreeSet<String>>,
}

/// What a probe has found.
#[derive(Debug, Default)]
pub(crate) struct Probed {
    pub(crate) found: Vec<Presence>,
    /// Those of them, by position, whose copies are all with holders that the master does not list.
    pub(crate) doubtful: Vec<usize>,
}

/// Tells one incarnation of the master's directory from the next: by which master answers, and by its request counters,
/// which only grow while it lives.
#[derive(Debug, Default)]
struct Incarnation {
    last: Option<(usize, u64)>,
    restarts: u64,
}

impl Incarnation {
    /// Records which master answered and its counters. Returns how many changes of incarnation were seen so far.
    fn saw(&mut self, master: usize, counted: u64) -> u64 {
        if self
            .last
            .is_some_and(|(before, most)| before != master || counted < most)
        {
            self.restarts += 1;
        }
        self.last = Some((master, counted));
        self.restarts
    }
}

#[derive(Deserialize)]
struct QueryAnswer {
    data: HashMap<String, KeyAnswer>,
}

#[derive(Deserialize)]
struct KeyAnswer {
    ok: bool,
    error: Option<String>,
    values: Option<Vec<DramReplica>>,
    disk_values: Option<Vec<DiskReplica>>,
    local_disk_values: Option<Vec<DiskReplica>>,
}

#[derive(Deserialize)]
struct DramReplica {
    #[serde(rename = "size_")]
    size: u64,
    #[serde(rename = "transport_endpoint_", default)]
    endpoint: String,
}

#[derive(Deserialize)]
struct DiskReplica {
    object_size: u64,
    #[serde(rename = "transport_endpoint", default)]
    endpoint: String,
}

#[derive(Deserialize)]
struct SegmentsAnswer {
    segments: Vec<Segment>,
}

#[derive(Deserialize)]
struct Segment {
    #[serde(default)]
    segment_name: String,
    #[serde(default)]
    segment_id: String,
    #[serde(default)]
    te_endpoint: String,
    allocator_used_bytes: u64,
    allocator_capacity_bytes: u64,
}

impl Admin {
    pub(crate) fn new(addresses: &[String]) -> Self {
        let http = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let addresses = addresses
            .iter()
            .map(|address| address.trim_end_matches('/').to_owned())
            .collect();
        Self {
            http,
            addresses,
            leader: AtomicUsize::new(0),
            clock: SystemClock::new(),
            incarnation: Mutex::default(),
            listed: Mutex::default(),
        }
    }

    /// Whether any master's admin address is configured.
    pub(crate) fn is_configured(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Where objects are, without side effects.
    pub(crate) fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Probed> {
        const OPERATION: &str = "engine.probe";
        let deadline = Deadline::after(&self.clock, within);
        let mut found = Vec::with_capacity(keys.len());
        let mut unlisted: Vec<(usize, Vec<String>)> = Vec::new();
        for (chunk, query) in queries(keys) {
            let text = self.ask(OPERATION, &query, deadline)?;
            let mut answer: QueryAnswer = parse(OPERATION, &text)?;
            for key in chunk {
                // The same key may be in the batch twice; the answer names it once.
                let entry = answer.data.get_mut(key.as_str()).ok_or_else(|| {
                    Error::internal(OPERATION, "the master's answer lacks a key that was asked for").with("key", key)
                })?;
                let listed = self.listed.lock();
                if entry.is_only_with(|endpoint| !listed.contains(endpoint)) {
                    unlisted.push((found.len(), entry.endpoints()));
                }
                drop(listed);
                found.push(entry.presence(key)?);
            }
        }
        if !unlisted.is_empty() {
            // Holders may have come since they were listed last.
            self.segments(OPERATION, deadline)?;
            let listed = self.listed.lock();
            unlisted.retain(|(_, endpoints)| endpoints.iter().all(|endpoint| !listed.contains(endpoint)));
        }
        Ok(Probed {
            found,
            doubtful: unlisted.into_iter().map(|(at, _)| at).collect(),
        })
    }

    /// The segments that are mounted.
    fn segments(&self, operation: &'static str, deadline: Deadline) -> Result<SegmentsAnswer> {
        let text = self.ask(operation, "/get_segments_detail", deadline)?;
        let answer: SegmentsAnswer = parse(operation, &text)?;
        *self.listed.lock() = answer.segments.iter().map(|one| one.te_endpoint.clone()).collect();
        Ok(answer)
    }

    /// Capacity and use of the whole cluster.
    pub(crate) fn usage(&self, within: Duration) -> Result<Usage> {
        const OPERATION: &str = "engine.usage";
        let deadline = Deadline::after(&self.clock, within);
        let answer = self.segments(OPERATION, deadline)?;
        let metrics = self.ask(OPERATION, "/metrics", deadline)?;
        let master = self.leader.load(Ordering::Relaxed);
        let restarts = self.incarnation.lock().saw(master, counted(&metrics));
        Ok(answer.usage(&metrics, restarts))
    }

    /// The segments that are mounted.
    pub(crate) fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        const OPERATION: &str = "engine.holders";
        let deadline = Deadline::after(&self.clock, within);
        Ok(self.segments(OPERATION, deadline)?.holders())
    }

    /// The keys that begin with `prefix`, after this one, up to `limit`. The master has no parts and sends all keys each
    /// time; no more than one part is kept in memory.
    pub(crate) fn list(
        &self,
        prefix: &str,
        after: Option<&ObjectKey>,
        limit: usize,
        within: Duration,
    ) -> Result<Listing> {
        const OPERATION: &str = "engine.list";
        let deadline = Deadline::after(&self.clock, within);
        self.ask_for(OPERATION, "/get_all_keys", deadline, |body| {
            let mut part = Part::new(prefix, after, limit);
            let text = body.with_config().limit(MAX_LIST_BYTES).reader();
            read_keys(text, |key| part.offer(key))?;
            Ok(part.listing())
        })
    }

    fn ask(&self, operation: &'static str, path: &str, deadline: Deadline) -> Result<String> {
        self.ask_for(operation, path, deadline, |body| {
            let text = body.with_config().limit(MAX_ANSWER_BYTES).read_to_string();
            text.map_err(std::io::Error::other)
        })
    }

    /// Asks the masters one by one, beginning with the one that answered last time.
    fn ask_for<T>(
        &self,
        operation: &'static str,
        path: &str,
        deadline: Deadline,
        read: impl Fn(&mut Body) -> std::io::Result<T>,
    ) -> Result<T> {
        let count = self.addresses.len();
        let first = self.leader.load(Ordering::Relaxed);
        let mut last = Error::new(
            tensorhold_core::ErrorKind::Unsupported,
            operation,
            "this needs the masters' admin addresses; name them in the setting `admin`",
        );
        for turn in 0..count {
            let at = (first + turn) % count;
            // A master that hangs must not use up the time of the masters that would answer.
            let share = u32::try_from(count - turn).unwrap_or(1);
            match self.ask_one(
                operation,
                &self.addresses[at],
                path,
                deadline.remaining(&self.clock) / share,
                &read,
            ) {
                Ok(answer) => {
                    self.leader.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn ask_one<T>(
        &self,
        operation: &'static str,
        address: &str,
        path: &str,
        within: Duration,
        read: impl Fn(&mut Body) -> std::io::Result<T>,
    ) -> Result<T> {
        let fail = |message: &str| Error::unavailable(operation, message).with("master", address);
        if within.is_zero() {
            return Err(fail("the deadline passed before the master was asked"));
        }
        let request = self
            .http
            .get(format!("{address}{path}"))
            .config()
            .timeout_global(Some(within))
            .build();
        let mut answer = request
            .call()
            .map_err(|error| fail("the master's admin port does not answer").caused_by(error))?;
        let status = answer.status();
        if status.as_u16() == 503 {
            return Err(fail("this master is not the leader now"));
        }
        if !status.is_success() {
            return Err(
                Error::internal(operation, "the master's admin port refuses the request")
                    .with("status", status)
                    .with("master", address),
            );
        }
        let read = read(answer.body_mut());
        read.map_err(|error| fail("the master's answer broke off, or is too long").caused_by(error))
    }
}

impl SegmentsAnswer {
    fn holders(self) -> Vec<Holder> {
        let holder = |segment: Segment| Holder {
            name: segment.segment_name,
            address: segment.te_endpoint,
            memory: segment.segment_id,
            dram_capacity: segment.allocator_capacity_bytes,
            dram_used: segment.allocator_used_bytes,
        };
        let mut holders: Vec<Holder> = self.segments.into_iter().map(holder).collect();
        holders.sort_by(|one, two| one.name.cmp(&two.name));
        holders
    }

    fn usage(&self, metrics: &str, restarts: u64) -> Usage {
        // The master's numbers are unchecked and may be nonsense: a sum must not overflow.
        let sum = |of: fn(&Segment) -> u64| self.segments.iter().map(of).fold(0, u64::saturating_add);
        Usage {
            holders: self.segments.len() as u64,
            restarts,
            dram_capacity: sum(|segment| segment.allocator_capacity_bytes),
            dram_used: sum(|segment| segment.allocator_used_bytes),
            ssd_capacity: gauge(metrics, "master_total_file_capacity_bytes"),
            ssd_used: gauge(metrics, "master_allocated_file_size_bytes"),
            objects: gauge(metrics, "master_key_count"),
            // A holder that mounts asks to be mounted again, too; one that was given up and comes back asks only that.
            mounts: gauge(metrics, "master_remount_segment_requests_total"),
        }
    }
}

impl KeyAnswer {
    /// Where its copies are with holders.
    fn endpoints(&self) -> Vec<String> {
        let dram = self.values.iter().flatten().map(|replica| &replica.endpoint);
        let ssd = self.local_disk_values.iter().flatten().map(|replica| &replica.endpoint);
        dram.chain(ssd).cloned().collect()
    }

    /// Whether it has copies, and all are with holders of which this is so. A copy that names no holder is with none.
    fn is_only_with(&self, is_so: impl Fn(&str) -> bool) -> bool {
        let endpoints = self.endpoints();
        let with_none = self.disk_values.iter().flatten().count();
        with_none == 0 && !endpoints.is_empty() && endpoints.iter().all(|one| !one.is_empty() && is_so(one))
    }

    fn presence(&mut self, key: &ObjectKey) -> Result<Presence> {
        if self.ok {
            let dram = self.values.as_deref().unwrap_or_default();
            let ssd = || self.disk_values.iter().chain(&self.local_disk_values).flatten();
            let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            let bytes = dram
                .first()
                .map(|replica| replica.size)
                .or_else(|| ssd().next().map(|replica| replica.object_size));
            return Ok(match bytes {
                Some(bytes) => Presence::Present {
                    dram: count(dram.len()),
                    ssd: count(ssd().count()),
                    bytes,
                },
                // The master knows the object, but no copy is complete: no reader could read it.
                None => Presence::Unfinished,
            });
        }
        match self.error.as_deref() {
            Some("OBJECT_NOT_FOUND") => Ok(Presence::Absent),
            Some("REPLICA_IS_NOT_READY") => Ok(Presence::Unfinished),
            other => Err(
                Error::internal("engine.probe", "the master reports an unknown error for this object")
                    .with("key", key)
                    .with("answer", other.unwrap_or("none")),
            ),
        }
    }
}

/// Splits keys into requests within the length limit.
fn queries(keys: &[ObjectKey]) -> Vec<(&[ObjectKey], String)> {
    const PATH: &str = "/batch_query_keys?keys=";
    let mut requests = Vec::new();
    let (mut from, mut query) = (0, PATH.to_owned());
    for (at, key) in keys.iter().enumerate() {
        let escaped = utf8_percent_encode(key.as_str(), ESCAPED).to_string();
        if at > from && query.len() + escaped.len() >= MAX_QUERY_BYTES {
            requests.push((&keys[from..at], std::mem::replace(&mut query, PATH.to_owned())));
            from = at;
        }
        if at > from {
            query.push(',');
        }
        query.push_str(&escaped);
    }
    if from < keys.len() {
        requests.push((&keys[from..], query));
    }
    requests
}

fn parse<'a, T: Deserialize<'a>>(operation: &'static str, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        Error::internal(
            operation,
            "the master's answer cannot be read; is this a release of Mooncake that Tensorhold knows?",
        )
        .caused_by(error)
    })
}

/// The sum of all request counters in Prometheus' text form.
fn counted(metrics: &str) -> u64 {
    let counters = metrics.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        name.ends_with("_requests_total")
            .then(|| value.trim().parse::<u64>().ok())?
    });
    counters.fold(0, u64::saturating_add)
}

/// The value of one metric without labels in Prometheus' text form; zero if it is not there.
fn gauge(metrics: &str, name: &str) -> u64 {
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
        .unwrap_or(0)
}

/// The master's answers, for the fuzzer (folder `fuzz/`): every answer is either understood or refused.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str) {
    let mut part = Part::new("s/", None, 3);
    if read_keys(text.as_bytes(), |key| part.offer(key)).is_ok() {
        assert!(part.listing().keys.len() <= 3, "more than the limit");
    }
    if let Ok(answer) = parse::<QueryAnswer>("fuzz", text) {
        for (name, mut entry) in answer.data {
            let Ok(key) = ObjectKey::new(name) else { continue };
            if let Ok(Presence::Present { dram, ssd, .. }) = entry.presence(&key) {
                assert!(dram > 0 || ssd > 0, "an object without a copy");
            }
            assert_eq!(queries(&[key]).len(), 1);
        }
    }
    let answer = parse::<SegmentsAnswer>("fuzz", text);
    answer
        .unwrap_or(SegmentsAnswer { segments: Vec::new() })
        .usage(text, counted(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(texts: &[&str]) -> Vec<ObjectKey> {
        texts.iter().map(|text| ObjectKey::new(text).expect("a key")).collect()
    }

    #[test]
    fn keys_are_escaped_and_separated() {
        let keys = keys(&["a/b", "c d&e=f%2C", "é"]);
        let queries = queries(&keys);
        assert_eq!(queries.len(), 1);
        assert_eq!(queries[0].1, "/batch_query_keys?keys=a/b,c%20d%26e%3Df%252C,%C3%A9");
    }

    #[test]
    fn long_lists_are_cut_and_nothing_is_lost_or_doubled() {
        let keys: Vec<_> = (0..1000)
            .map(|n| ObjectKey::new(format!("{n}/{}", "k".repeat(200))).expect("a key"))
            .collect();
        let queries = queries(&keys);
        assert!(queries.len() > 5);
        assert!(queries.iter().all(|(_, query)| query.len() <= MAX_QUERY_BYTES));
        assert_eq!(
            queries.iter().flat_map(|(chunk, _)| chunk.iter()).collect::<Vec<_>>(),
            keys.iter().collect::<Vec<_>>()
        );
        assert!(super::queries(&[]).is_empty());
    }

    #[test]
    fn answers_are_read_as_the_master_writes_them() {
        let text = r#"{"success":true,"data":{
            "d":{"ok":true,"error":null,"values":[{"size_":7,"buffer_address_":1}],"disk_values":null,"local_disk_values":null,"nof_values":null},
            "s":{"ok":true,"error":null,"values":[],"disk_values":null,"local_disk_values":[{"client_id":"c","object_size":9,"transport_endpoint":"e"}],"nof_values":null},
            "n":{"ok":false,"error":"OBJECT_NOT_FOUND","values":null,"disk_values":null,"local_disk_values":null,"nof_values":null},
            "u":{"ok":false,"error":"REPLICA_IS_NOT_READY","values":null,"disk_values":null,"local_disk_values":null,"nof_values":null},
            "x":{"ok":false,"error":"INTERNAL_ERROR","values":null,"disk_values":null,"local_disk_values":null,"nof_values":null}}}"#;
        let mut answer: QueryAnswer = parse("test", text).expect("reads");
        let mut see = |name: &str| answer.data.get_mut(name).expect("there").presence(&keys(&[name])[0]);
        assert_eq!(
            see("d").expect("known"),
            Presence::Present {
                dram: 1,
                ssd: 0,
                bytes: 7
            }
        );
        assert_eq!(
            see("s").expect("known"),
            Presence::Present {
                dram: 0,
                ssd: 1,
                bytes: 9
            }
        );
        assert_eq!(see("n").expect("known"), Presence::Absent);
        assert_eq!(see("u").expect("known"), Presence::Unfinished);
        assert!(see("x").is_err());
        assert!(parse::<QueryAnswer>("test", "<html>").is_err());
    }

    #[test]
    fn an_object_is_doubtful_if_all_its_copies_are_with_holders_that_are_not_listed() {
        let text = r#"{"success":true,"data":{
            "gone":{"ok":true,"error":null,"values":[{"size_":7,"transport_endpoint_":"h:1"}],"disk_values":null,"local_disk_values":null},
            "copy":{"ok":true,"error":null,"values":[{"size_":7,"transport_endpoint_":"h:1"},{"size_":7,"transport_endpoint_":"h:2"}],"disk_values":null,"local_disk_values":null},
            "ssd":{"ok":true,"error":null,"values":[],"disk_values":null,"local_disk_values":[{"client_id":"c","object_size":9,"transport_endpoint":"h:1"}]},
            "file":{"ok":true,"error":null,"values":[],"disk_values":[{"object_size":9}],"local_disk_values":null},
            "none":{"ok":true,"error":null,"values":[{"size_":7}],"disk_values":null,"local_disk_values":null}}}"#;
        let answer: QueryAnswer = parse("test", text).expect("reads");
        let is_doubtful = |name: &str| answer.data[name].is_only_with(|endpoint| endpoint != "h:2");
        assert!(is_doubtful("gone") && is_doubtful("ssd"));
        assert!(!is_doubtful("copy") && !is_doubtful("file") && !is_doubtful("none"));
    }

    #[test]
    fn a_master_whose_counters_fall_was_restarted() {
        let text = |n: u64| {
            format!(
                "# TYPE a_requests_total counter\na_requests_total {n}\nb_requests_total 1\ngauge 9\nc_requests_total{{x=\"1\"}} 5\n"
            )
        };
        assert_eq!(counted(&text(7)), 8);
        let mut incarnation = Incarnation::default();
        let mut saw = |master, n| incarnation.saw(master, counted(&text(n)));
        assert_eq!((saw(0, 7), saw(0, 7), saw(0, 9)), (0, 0, 0));
        assert_eq!((saw(0, 2), saw(0, 3)), (1, 1), "the same master, begun anew");
        assert_eq!((saw(1, 99), saw(1, 100), saw(0, 101)), (2, 2, 3), "another master");
    }

    #[test]
    fn a_master_that_claims_more_memory_than_there_is_does_no_harm() {
        let segment = r#"{"allocator_used_bytes":18446744073709551615,"allocator_capacity_bytes":1}"#;
        let text = format!(r#"{{"segments":[{segment},{segment}]}}"#);
        let usage = parse::<SegmentsAnswer>("test", &text).expect("reads").usage("", 0);
        assert_eq!((usage.dram_used, usage.dram_capacity), (u64::MAX, 2));
    }

    #[test]
    fn holders_are_read_as_the_master_writes_them() {
        let text = r#"{"total_segments":1,"segments":[{"segment_name":"h:1","segment_id":"7-8","client_id":"1-2","base_address":"0x7f",
            "size_bytes":64,"te_endpoint":"h:2","protocol":"tcp","status":"OK","allocator_used_bytes":3,"allocator_capacity_bytes":64}]}"#;
        let holders = parse::<SegmentsAnswer>("test", text).expect("reads").holders();
        let wanted = Holder {
            name: "h:1".to_owned(),
            address: "h:2".to_owned(),
            memory: "7-8".to_owned(),
            dram_capacity: 64,
            dram_used: 3,
        };
        assert_eq!(holders, [wanted]);
    }

    #[test]
    fn metrics_are_found_by_their_whole_name() {
        let text = "# TYPE master_key_count gauge\nmaster_key_count_total 9\nmaster_key_count 4\n";
        assert_eq!((gauge(text, "master_key_count"), gauge(text, "absent")), (4, 0));
    }
}
