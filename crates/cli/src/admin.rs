//! The master, as a command asks it: whether it listens, and its admin HTTP port, which answers without side effects.

use std::collections::HashMap;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tensorhold_core::{Deadline, ErrorKind, SystemClock};

use crate::failure::Failure;
use crate::http;
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
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Segment {
    #[serde(default)]
    pub(crate) segment_name: String,
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
    Present { dram: usize, ssd: usize, bytes: u64 },
    Unfinished,
    Absent,
    Unknown(String),
}

impl Cluster {
    /// Asks the masters one after the other; of several only the leader answers.
    pub(crate) fn ask(admin: &[String], within: Duration) -> Result<Self, String> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, within);
        let mut last = "no admin address is known; name it: --admin, or TENSORHOLD_ADMIN".to_owned();
        for (turn, address) in admin.iter().enumerate() {
            // One that hangs must not use up the time of the others.
            let share = u32::try_from(admin.len() - turn).unwrap_or(1);
            let part = deadline.remaining(&clock) / share;
            match Self::ask_one(address, part) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn ask_one(address: &str, within: Duration) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Segments {
            segments: Vec<Segment>,
        }
        let half = within / 2;
        let detail = body(address, "/get_segments_detail", half)?;
        let segments: Segments = serde_json::from_str(&detail)
            .map_err(|_| format!("what answers at {address} is no master of a release that Tensorhold knows"))?;
        let metrics = body(address, "/metrics", half)?;
        Ok(Self {
            address: address.to_owned(),
            segments: segments.segments,
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

fn body(address: &str, path: &str, within: Duration) -> Result<String, String> {
    let reply = http::get(&format!("{address}{path}"), within)?;
    match reply.status {
        200 => Ok(reply.body),
        503 => Err(format!("the master at {address} is not the leader now")),
        status => Err(format!("the master at {address} answers with status {status}")),
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

/// Where objects are, without side effects. One answer for each key.
pub(crate) fn probe(admin: &[String], keys: &[String], within: Duration) -> Result<Vec<Presence>, String> {
    let clock = SystemClock::new();
    let deadline = Deadline::after(&clock, within);
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
        found.extend(probe_some(admin, &keys[from..to], &query, deadline.remaining(&clock))?);
        from = to;
    }
    Ok(found)
}

fn probe_some(admin: &[String], keys: &[String], query: &str, within: Duration) -> Result<Vec<Presence>, String> {
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
    }
    #[derive(Deserialize)]
    struct Disk {
        object_size: u64,
    }
    let mut last = "no admin address is known; name it: --admin, or TENSORHOLD_ADMIN".to_owned();
    for address in admin {
        let text = match body(address, query, within / u32::try_from(admin.len()).unwrap_or(1)) {
            Ok(text) => text,
            Err(error) => {
                last = error;
                continue;
            }
        };
        let answer: Answer = serde_json::from_str(&text).map_err(|_| {
            format!(
                "what the master at {address} says of objects cannot be read; is it a release that Tensorhold knows?"
            )
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
                match bytes {
                    Some(bytes) => Presence::Present {
                        dram: dram.len(),
                        ssd: ssd.len(),
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
        return Ok(keys.iter().map(of).collect());
    }
    Err(last)
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
