//! The master, as a command asks it: whether it listens, and its admin HTTP port, which answers without side effects.

use std::collections::HashMap;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tensorhold_core::{Deadline, ErrorKind, SystemClock};

use crate::failure::Failure;
use crate::http;
use crate::output::object;
use crate::settings::Settings;
use crate::text::shown;

const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');
/// Bounds the length of one request.
const MOST_QUERY_BYTES: usize = 16 << 10;

/// A holder's memory, as the master knows it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Segment {
    /// The holder's name.
    pub(crate) segment_name: String,
    /// Another one under the same name means that what lay there is gone.
    pub(crate) segment_id: String,
    /// The holder as copies on its SSD name it.
    pub(crate) client_id: String,
    /// The holder as copies in its DRAM name it.
    pub(crate) te_endpoint: String,
    /// `OK` if it is given new objects.
    pub(crate) status: String,
    pub(crate) allocator_used_bytes: u64,
    pub(crate) allocator_capacity_bytes: u64,
}

/// What the leading master says of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// The address that answered.
    pub(crate) address: String,
    pub(crate) segments: Vec<Segment>,
    pub(crate) metrics: HashMap<String, f64>,
}

/// Where one object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Its copies in DRAM and on SSD, each by the name of its holder if that is known.
    Present {
        dram: Vec<String>,
        ssd: Vec<String>,
        bytes: u64,
    },
    Unfinished,
    Absent,
    Unknown(String),
}

impl Cluster {
    /// Asks the masters one after the other; of several only the leader answers.
    pub(crate) fn ask(admin: &[String], within: Duration) -> Result<Self, String> {
        leader(admin, within, Self::ask_one)
    }

    fn ask_one(address: &str, within: Duration) -> Result<Self, String> {
        let half = within / 2;
        let segments = segments_of(address, half)?;
        let metrics = body(address, "/metrics", half)?;
        Ok(Self {
            address: address.to_owned(),
            segments,
            metrics: parse_metrics(&metrics),
        })
    }

    /// A metric without labels.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counts and sizes, bounded below"
        )]
        self.metrics
            .get(name)
            .filter(|value| **value >= 0.0)
            .map(|value| *value as u64)
    }

    pub(crate) fn used(&self) -> u64 {
        self.segments
            .iter()
            .map(|one| one.allocator_used_bytes)
            .fold(0, u64::saturating_add)
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.segments
            .iter()
            .map(|one| one.allocator_capacity_bytes)
            .fold(0, u64::saturating_add)
    }
}

/// The address of the leading master, and the memory of every holder by its word.
pub(crate) fn segments(admin: &[String], within: Duration) -> Result<(String, Vec<Segment>), String> {
    leader(admin, within, |address, within| {
        Ok((address.to_owned(), segments_of(address, within)?))
    })
}

fn segments_of(address: &str, within: Duration) -> Result<Vec<Segment>, String> {
    #[derive(Deserialize)]
    struct Segments {
        segments: Vec<Segment>,
    }
    let detail = body(address, "/get_segments_detail", within)?;
    let segments: Segments = serde_json::from_str(&detail)
        .map_err(|_| format!("what answers at {address} is no master of a release that Tensorhold knows"))?;
    Ok(segments.segments)
}

/// What came of asking that a holder be given nothing new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// From now on, until this job is cancelled or the holder registers anew.
    By(String),
    /// It was given nothing new before.
    Already,
}

/// Has the master give a holder nothing new. Its job moves what is not pinned to other holders, one object at a time.
pub(crate) fn close(admin: &[String], holder: &str, within: Duration) -> Result<Closed, String> {
    #[derive(Deserialize)]
    struct Job {
        job_id: String,
    }
    let request = object!("segments": [holder], "target_segments": [""; 0], "max_concurrency": 1);
    leader(admin, within, |address, within| {
        let reply = http::post(&format!("{address}/api/v1/drain_jobs"), &request, within)?;
        match reply.status {
            200 => match serde_json::from_str::<Job>(&reply.body) {
                Ok(job) => Ok(Closed::By(job.job_id)),
                Err(_) => Err(format!("the answer of the master at {address} cannot be read")),
            },
            409 => Ok(Closed::Already),
            status => Err(refused(address, status)),
        }
    })
}

/// Lets a holder be given new objects again. False if the job is busy, or over.
pub(crate) fn reopen(admin: &[String], job: &str, within: Duration) -> Result<bool, String> {
    let escaped = utf8_percent_encode(job, ESCAPED).to_string();
    leader(admin, within, |address, within| {
        let url = format!("{address}/api/v1/drain_jobs/cancel?job_id={escaped}");
        let reply = http::post(&url, &object!("job_id": job), within)?;
        match reply.status {
            200 => Ok(true),
            409 => Ok(false),
            404 => Err("the leading master knows no such job; a master that begins anew lets every holder be given new objects".to_owned()),
            status => Err(refused(address, status)),
        }
    })
}

/// Asks the masters one after the other; of several only the leader answers.
fn leader<T>(
    admin: &[String],
    within: Duration,
    ask: impl Fn(&str, Duration) -> Result<T, String>,
) -> Result<T, String> {
    let clock = SystemClock::new();
    let deadline = Deadline::after(&clock, within);
    let mut last = "no admin address is known; name it: --admin, or TENSORHOLD_ADMIN".to_owned();
    for (turn, address) in admin.iter().enumerate() {
        // One that hangs must not use up the time of the others.
        let share = u32::try_from(admin.len() - turn).unwrap_or(1);
        match ask(address, deadline.remaining(&clock) / share) {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn refused(address: &str, status: u16) -> String {
    match status {
        503 => format!("the master at {address} is not the leader now"),
        status => format!("the master at {address} answers with status {status}"),
    }
}

fn body(address: &str, path: &str, within: Duration) -> Result<String, String> {
    let reply = http::get(&format!("{address}{path}"), within)?;
    match reply.status {
        200 => Ok(reply.body),
        status => Err(refused(address, status)),
    }
}

/// The metrics without labels, in Prometheus' text form.
fn parse_metrics(text: &str) -> HashMap<String, f64> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        (!name.starts_with('#') && !name.contains('{')).then_some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Where objects are, without side effects. One answer for each key, all of them by one master.
pub(crate) fn probe(admin: &[String], keys: &[String], within: Duration) -> Result<Vec<Presence>, String> {
    leader(admin, within, |address, within| probe_all(address, keys, within))
}

fn probe_all(address: &str, keys: &[String], within: Duration) -> Result<Vec<Presence>, String> {
    let clock = SystemClock::new();
    let deadline = Deadline::after(&clock, within);
    let holders = Names::of(&segments_of(address, deadline.remaining(&clock))?);
    let mut found = Vec::with_capacity(keys.len());
    let mut from = 0;
    while from < keys.len() {
        let mut query = String::from("/batch_query_keys?keys=");
        let mut to = from;
        while to < keys.len() {
            let escaped = utf8_percent_encode(&keys[to], ESCAPED).to_string();
            if to > from && query.len() + escaped.len() >= MOST_QUERY_BYTES {
                break;
            }
            if to > from {
                query.push(',');
            }
            query.push_str(&escaped);
            to += 1;
        }
        let keys = &keys[from..to];
        found.extend(probe_some(address, keys, &query, &holders, deadline.remaining(&clock))?);
        from = to;
    }
    Ok(found)
}

/// The names of holders, by what copies name.
struct Names {
    by_endpoint: HashMap<String, String>,
    by_client: HashMap<String, String>,
}

impl Names {
    fn of(segments: &[Segment]) -> Self {
        let by = |key: fn(&Segment) -> &String| {
            let pairs = segments.iter().map(|one| (key(one).clone(), one.segment_name.clone()));
            pairs.collect()
        };
        Self {
            by_endpoint: by(|one| &one.te_endpoint),
            by_client: by(|one| &one.client_id),
        }
    }
}

fn probe_some(
    address: &str,
    keys: &[String],
    query: &str,
    holders: &Names,
    within: Duration,
) -> Result<Vec<Presence>, String> {
    #[derive(Deserialize)]
    struct Answer {
        data: HashMap<String, Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        ok: bool,
        error: Option<String>,
        #[serde(default)]
        values: Option<Vec<Memory>>,
        #[serde(default)]
        disk_values: Option<Vec<Disk>>,
        #[serde(default)]
        local_disk_values: Option<Vec<Disk>>,
    }
    #[derive(Deserialize)]
    struct Memory {
        size_: u64,
        #[serde(default)]
        transport_endpoint_: String,
    }
    #[derive(Deserialize)]
    struct Disk {
        object_size: u64,
        #[serde(default)]
        client_id: String,
    }
    // A holder that has just left has no name any more, and its copies stay for a while.
    let name = |names: &HashMap<String, String>, at: &String| names.get(at).unwrap_or(at).clone();
    let text = body(address, query, within)?;
    let answer: Answer = serde_json::from_str(&text).map_err(|_| {
        format!("what the master at {address} says of objects cannot be read; is it a release that Tensorhold knows?")
    })?;
    let of = |key: &String| match answer.data.get(key) {
        Some(entry) if entry.ok => {
            let dram = entry.values.as_deref().unwrap_or_default();
            let ssd: Vec<&Disk> = entry
                .disk_values
                .iter()
                .chain(&entry.local_disk_values)
                .flatten()
                .collect();
            let bytes = dram
                .first()
                .map(|one| one.size_)
                .or_else(|| ssd.first().map(|one| one.object_size));
            let memory = dram
                .iter()
                .map(|one| name(&holders.by_endpoint, &one.transport_endpoint_));
            let disk = ssd.iter().map(|one| name(&holders.by_client, &one.client_id));
            match bytes {
                Some(bytes) => Presence::Present {
                    dram: memory.collect(),
                    ssd: disk.collect(),
                    bytes,
                },
                None => Presence::Unfinished,
            }
        }
        Some(entry) => match entry.error.as_deref() {
            Some("OBJECT_NOT_FOUND") => Presence::Absent,
            Some("REPLICA_IS_NOT_READY") => Presence::Unfinished,
            other => Presence::Unknown(other.unwrap_or("no reason").to_owned()),
        },
        None => Presence::Unknown("the answer lacks it".to_owned()),
    };
    Ok(keys.iter().map(of).collect())
}

/// Whether anything listens at an address, by a plain connection: the engine's own attempt at a dead master takes a
/// minute and a half.
pub(crate) fn connects(address: &str, within: Duration) -> Result<Duration, String> {
    use tensorhold_core::Clock as _;
    let clock = SystemClock::new();
    let begun = clock.now();
    let addresses = address.to_socket_addrs().map_err(|error| error.to_string())?;
    let mut last = "the name has no address".to_owned();
    for one in addresses {
        match TcpStream::connect_timeout(&one, within.max(Duration::from_millis(1))) {
            Ok(_) => return Ok(clock.now().since(begun)),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

/// The addresses at which the master, or the etcd that knows it, is found.
pub(crate) fn master_addresses(master: &str) -> Vec<String> {
    match master.strip_prefix("etcd://") {
        Some(nodes) => nodes.split(';').map(str::to_owned).collect(),
        None => vec![master.to_owned()],
    }
}

/// Checks that a process listens at the master's address.
pub(crate) async fn listens(settings: &Settings, within: Duration) -> Result<(), Failure> {
    let addresses = master_addresses(&settings.master);
    let within = within.min(Duration::from_secs(5));
    let tried = tokio::task::spawn_blocking(move || {
        let mut last = String::new();
        for address in &addresses {
            match connects(address, within) {
                Ok(_) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    });
    let tried = tried.await.unwrap_or_else(|failure| Err(failure.to_string()));
    tried.map_err(|why| {
        Failure::new(
            ErrorKind::Unavailable,
            format!("Mooncake's master does not answer at {}", shown(&settings.master)),
            why,
            settings.advice_if_unreachable("--master, or TENSORHOLD_MASTER"),
        )
    })
}
