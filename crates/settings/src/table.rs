//! The settings.

use serde_json::Value;
use tensorhold_core::Error;

use crate::kind::Kind::{self, *};
use crate::layers::{Source, refused};

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, with those of its sections before it: `index.tick`. `[]` is one of several tables.
    pub path: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// The default, as a variable would say it; empty for none.
    pub default: &'static str,
    /// Whether `none` is a value.
    pub or_none: bool,
    /// What it is, in a sentence.
    pub meaning: &'static str,
}

const fn of(path: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Setting {
    Setting {
        path,
        kind,
        default,
        or_none: false,
        meaning,
    }
}

/// One whose value may be `none`.
const fn or_none(path: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Setting {
    Setting {
        path,
        kind,
        default,
        or_none: true,
        meaning,
    }
}

/// All of them, in the order of the reference.
#[rustfmt::skip] // It is read as a table.
pub const ALL: &[Setting] = &[
    of("store", Text, "", "The store's name: processes that use the same name on the same index share its samples."),
    of("etcd", Addresses, "http://127.0.0.1:2379", "The nodes of the etcd that holds the index."),
    of("master", Text, "127.0.0.1:50051",
        "Mooncake's master: `host:port`, or `etcd://host:port;…` when masters are highly available."),
    of("admin", Addresses, "", "The masters' HTTP addresses; by default port 9003 of the master's host."),
    of("metadata", Text, "P2PHANDSHAKE",
        "Where transfer engines find each other: `P2PHANDSHAKE` for no server, or the URL of one."),
    of("protocol", Text, "tcp", "How bytes move: `tcp` or `rdma`."),
    of("local_hostname", Text, "127.0.0.1", "The name under which other hosts reach this one."),
    of("environment", Pairs, "", "Variables that Mooncake's library reads when it is loaded (`MC_…`)."),
    of("role", Text, "", "What this process is in its run (`producer`, `trainer-3`), for the list of sessions."),
    or_none("budget", Bytes, "none", "The most bytes that the store may hold; the first process that sets it decides."),
    of("pool_bytes", Bytes, "1GiB", "The most memory of the pool into which gets receive."),
    of("warm_bytes", Bytes, "0", "How much of the pool is allocated when the store is opened."),
    of("residency", Text, "dram",
        "Where samples may lie that this process puts: `dram`, or `spill` for SSD once DRAM is full."),
    of("checksum", Switch, "true", "Whether tensors get a checksum when they are put."),
    of("lease_seconds", Duration, "60s", "How long a lease lasts without being renewed."),
    or_none("sweep_every", Duration, "1s",
        "How often this process cleans up after processes that died; `none` leaves that to others."),
    of("timeout", Duration, "30s", "How long a call may take if it is given no timeout, and opening the store."),
    of("external_sample_bytes", Bytes, "0",
        "SpecForge: the share of the budget that is reserved for a sample of a serving engine."),
    of("key", Secrets, "", "The key of a sealed store; or several by their ids, in a file."),
    of("key_id", Text, "", "The id of the key that seals."),
    of("etcd_options.root", Text, "tensorhold", "The first part of all keys in etcd: one root is one index."),
    of("etcd_options.user", Text, "", "The user at etcd, if it asks for a login."),
    of("etcd_options.password", Secret, "", "That user's password."),
    of("etcd_options.allow_plain_password", Switch, "false",
        "Whether a password may go over `http`, where hosts on the path can read it."),
    of("etcd_options.tls.ca", Pem, "",
        "The CA that must have signed etcd's certificate; by default those of the system."),
    of("etcd_options.tls.certificate", Pem, "", "Our client certificate, if etcd requires one."),
    of("etcd_options.tls.key", Pem, "", "The private key of that certificate."),
    of("etcd_options.tls.server_name", Text, "",
        "The name that etcd's certificate must carry; by default the host of the address."),
    of("etcd_options.connect_timeout", Duration, "1s", "How long a connection to one node may take."),
    of("etcd_options.try_timeout", Duration, "1s",
        "How long one node may take to answer what another may be asked instead."),
    of("etcd_options.write_timeout", Duration, "3s",
        "How long a transaction may take before its outcome counts as unknown."),
    of("etcd_options.keep_alive", Duration, "10s",
        "How often a silent connection is probed; etcd refuses less than 5 s."),
    of("etcd_options.watch_probe", Duration, "5s", "How often a silent watch asks its node for a sign of life."),
    of("etcd_options.watch_patience", Duration, "30s", "How long a watch that lost its node looks for another."),
    of("etcd_options.spread", Switch, "true",
        "Whether to begin with a random node, so that processes spread over them."),
    of("index.session_ttl", Duration, "10s", "How long a process may be silent before its session ends."),
    of("index.tick", Duration, "1s",
        "The length of a tick of the store's shared clock; the same for all its processes."),
    of("index.grace_ticks", Count, "2", "How many ticks after its end a lease still counts, for transfers in flight."),
    of("index.reserve_ticks", Count, "600", "How many ticks a reservation lasts."),
    of("index.lost_ticks", Count, "60", "How many ticks the record of a lost sample is kept."),
    of("index.dead_ticks", Count, "0", "How many ticks the objects of a dead letter are kept."),
    of("index.dead_most", Count, "1000", "The most dead letters whose objects are kept."),
    of("features.max_in_flight", Count, "16", "The most engine calls and checksum computations in flight."),
    of("features.streams", Count, "2", "How many threads check or decrypt the bytes of one get."),
    of("features.chunk_bytes", Bytes, "16MiB", "Tensors longer than this are stored as several objects."),
    of("features.replicas", Count, "1", "How many copies of each object the engine keeps."),
    or_none("features.frees_per_second", Count, "none",
        "The most samples freed in a second of those that others have retired."),
    of("features.sweep_limit", Count, "1000", "How many records one sweep examines."),
    of("features.free_queue", Count, "4096", "How many removals may be queued."),
    of("features.call_within", Duration, "10s", "The deadline of calls that no caller waits for."),
    of("features.loss_grace", Duration, "30s", "How long an object must be missing before its sample is lost."),
    of("features.adopt_prefixes", List, "",
        "Prefixes of keys of other writers that this store may adopt; the same for all its processes."),
    of("features.accept_seal_v1", Switch, "false", "Whether a sealed store reads samples of the first scheme."),
    of("features.stage_bytes", Bytes, "128MiB", "The most staging memory, for puts and for gets each."),
    of("prefetch.route", Text, "buffer",
        "How objects on SSD come to memory: `buffer`, or `promote` to DRAM of a holder."),
    of("prefetch.buffer_bytes", Bytes, "256MiB", "The most memory for objects read ahead."),
    of("prefetch.keep", Duration, "10s", "How long an object that was read ahead is kept for its reader."),
    of("prefetch.workers", Count, "2", "Threads that read ahead."),
    of("prefetch.queue", Count, "4096", "The most objects that wait to be begun."),
    of("prefetch.batch_objects", Count, "16", "The most objects of one read."),
    of("prefetch.batch_bytes", Bytes, "32MiB", "The most bytes of one read of several objects."),
    of("prefetch.begin_within", Duration, "2s", "How long an object may wait before it is begun."),
    of("prefetch.within", Duration, "5s", "How long an attempt may take."),
    of("prefetch.remember", Duration, "1s", "How long an outcome is remembered."),
    of("prefetch.cool_down", Duration, "500ms", "How long nothing is begun after memory was short."),
    of("prefetch.look_every", Duration, "25ms", "How often the progress of promotions is looked up."),
    of("prefetch.dram_below", Share, "0.85", "The share of DRAM in use above which nothing is promoted."),
    of("prefetch.cache_for", Duration, "0s", "How long the answer of a probe may be used again."),
    of("prefetch.count_sources", Switch, "false", "Whether to find out which tier served each get."),
    of("prefetch.wait_for_prefetch", Duration, "0s", "How long a get waits for objects that are on their way."),
    of("engine.devices", Text, "", "Network devices for RDMA, separated by commas; by default the engine chooses."),
    of("engine.buffer_bytes", Bytes, "16MiB", "The staging buffer of Mooncake's client."),
    of("engine.tenant", Text, "default", "The tenant that keys belong to."),
    or_none("engine.client_http_port", Count, "none", "The port of the client's own HTTP metrics."),
    of("engine.untested_release", Switch, "false",
        "Whether to open the engine with a release of Mooncake that was never tested."),
    of("engine.idle_waits", Text, "auto", "Whether threads wait for transfers at idle priority: `auto` or `off`."),
    of("engine.max_calls", Count, "128", "The most engine calls in flight, including calls that hang."),
    of("engine.close_within", Duration, "10s", "How long the end of the engine waits for calls in flight."),
    of("steward.read_only", Switch, "false", "Whether to change nothing: look, warn and answer."),
    of("steward.look_every", Duration, "15s", "How often sessions, budgets and etcd are looked at."),
    of("steward.all", Switch, "false",
        "Whether to look after stores without an entry, too; without any entry, or with `others`, it does."),
    or_none("steward.others.frees_per_second", Count, "none",
        "The most samples of such a store that are freed in a second."),
    of("steward.others.adopt_prefixes", List, "", "As `features.adopt_prefixes`, for such stores."),
    or_none("steward.others.loss_grace", Duration, "none",
        "As `features.loss_grace`, for such stores; `none` is the usual time."),
    or_none("steward.others.audit_every", Duration, "none",
        "How often objects and records of such a store are compared and repaired."),
    or_none("steward.others.end_when_unused", Duration, "none",
        "End such a store when no process has had it open for so long."),
    or_none("steward.others.forget_after", Duration, "24h",
        "Forget such a store, with its budget, when no process has had it open for so long and it is empty."),
    of("steward.stores", Tables, "", "Stores with settings of their own, each as `[[steward.stores]]`."),
    of("steward.stores[].store", Text, "", "Its name."),
    of("steward.stores[].sweep_every", Duration, "1s", "How often it is swept."),
    of("steward.stores[].sweep_limit", Count, "1000", "How many due records one part of a sweep examines."),
    or_none("steward.stores[].frees_per_second", Count, "none", "The most samples that are freed in a second."),
    of("steward.stores[].adopt_prefixes", List, "", "As `features.adopt_prefixes` of its processes."),
    or_none("steward.stores[].loss_grace", Duration, "none",
        "As `features.loss_grace` of its processes; `none` is the usual time."),
    or_none("steward.stores[].audit_every", Duration, "none",
        "How often its objects and records are compared and repaired."),
    or_none("steward.stores[].end_when_unused", Duration, "none",
        "End it when no process has had it open for so long."),
    of("steward.stores[].warn_free", Share, "0.1", "Warn when less than this part of the budget is free."),
    of("steward.etcd.watch", Switch, "true", "Whether the storage of etcd is watched."),
    of("steward.etcd.quota", Bytes, "2GiB", "etcd's quota (`--quota-backend-bytes`), for releases that do not tell."),
    of("steward.etcd.warn_full", Share, "0.7", "Warn when a node's file has reached this part of the quota."),
    of("steward.etcd.defragment", Switch, "false",
        "Whether to defragment such a node if less than half of its file is used."),
    of("steward.etcd.compact", Text, "auto",
        "Whether to compact etcd: `auto`, if all its keys are of this index; `on`; or `off`."),
    of("steward.etcd.compact_every", Duration, "5m", "How often, and how much history is kept."),
    of("steward.http.listen", Text, "127.0.0.1:9464",
        "Where the HTTP interface listens; what is not loopback needs tokens and TLS."),
    of("steward.http.within", Duration, "30s", "How long a request may take."),
    of("steward.http.most", Count, "64", "The most requests at a time, and the most connections."),
    of("steward.http.tls.certificate", Text, "", "The path of its certificate, as PEM; by default plain HTTP."),
    of("steward.http.tls.key", Text, "", "The path of the certificate's private key, as PEM."),
    of("steward.http.tls.client_ca", Text, "",
        "The path of the CA whose clients are let in; by default clients need no certificate."),
    of("steward.http.tokens", Tables, "",
        "Who may use the interface, each as `[[steward.http.tokens]]`; `tensorhold token` makes one."),
    of("steward.http.tokens[].name", Text, "", "Who this is, for the log."),
    of("steward.http.tokens[].sha256", Text, "", "The SHA-256 of the token, as 64 hex digits."),
    of("steward.http.tokens[].stores", List, "", "The stores that it is for; by default all."),
    of("steward.http.tokens[].write", Switch, "false", "Whether it may change something."),
    or_none("steward.http.tokens[].expires", Count, "none", "When it expires, in seconds since 1970."),
];

/// Sections whose variables have a shorter name than the rule gives.
const SHORT: [(&str, &str); 3] = [
    // A variable TENSORHOLD_ETCD_KEY would be taken for a store's key.
    ("etcd_options.tls.key", "etcd.private_key"),
    ("etcd_options.tls.", "etcd."),
    ("etcd_options.", "etcd."),
];

/// The setting of this path.
pub fn setting(path: &str) -> Option<&'static Setting> {
    ALL.iter().find(|one| one.path == path)
}

impl Setting {
    /// The variable that sets it: `TENSORHOLD_` and its path. None for what only a file can say.
    pub fn variable(&self) -> Option<String> {
        if self.kind == Tables || self.path.contains("[]") {
            return None;
        }
        let short = SHORT
            .iter()
            .find_map(|(long, short)| Some(format!("{short}{}", self.path.strip_prefix(long)?)));
        let path = short.unwrap_or_else(|| self.path.to_owned());
        Some(format!("TENSORHOLD_{}", path.replace('.', "_").to_ascii_uppercase()))
    }

    /// The default in JSON; null if there is none.
    pub fn default_value(&self) -> Value {
        match self.default {
            "" => Value::Null,
            text => self.read_text(text).unwrap_or_default(),
        }
    }

    pub(crate) fn read(&self, value: &Value) -> Option<Value> {
        if self.or_none && value == "none" {
            Some(Value::Null)
        } else {
            self.kind.read(value)
        }
    }

    pub(crate) fn read_text(&self, text: &str) -> Option<Value> {
        if self.or_none && text.trim() == "none" {
            Some(Value::Null)
        } else {
            self.kind.read_text(text)
        }
    }

    pub(crate) fn wrong(&self, source: &Source) -> Error {
        let none = if self.or_none { ", or \"none\"" } else { "" };
        let expected = format!("{}{none}", self.kind.expected());
        refused(self.path, source, "the value is not of the kind that it should be").with("expected", expected)
    }
}

/// The settings of a section whose default is not the one of a struct, or that only one of both has. `config` is the
/// struct's default in JSON. Fields that are not settings of the section are named in `elsewhere`, each with the setting
/// that it is, or with an empty text. For the tests of what takes the settings.
pub fn differences(section: &str, config: &Value, elsewhere: &[(&str, &str)]) -> Vec<String> {
    let mut different = Vec::new();
    let fields = config.as_object().into_iter().flatten();
    for (name, value) in fields {
        let path = format!("{section}.{name}");
        let other = elsewhere
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, setting)| *setting);
        let path = other.map_or(path, str::to_owned);
        match setting(&path) {
            _ if path.is_empty() => {}
            Some(setting) if is_default(setting, value) => {}
            None if value.is_object() => different.extend(differences(&path, value, &[])),
            _ => different.push(path),
        }
    }
    let field = |one: &Setting| one.path.strip_prefix(section)?.strip_prefix('.').map(str::to_owned);
    let is_there = |name: &String| config.get(name).is_some() || elsewhere.iter().any(|(field, _)| field == name);
    let missing = ALL
        .iter()
        .filter_map(field)
        .filter(|name| !name.contains('.') && !is_there(name));
    different.extend(missing.map(|name| format!("{section}.{name}")));
    different
}

fn is_default(setting: &Setting, value: &Value) -> bool {
    let is_none = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let default = setting.default_value();
    (is_none(value) && is_none(&default)) || setting.kind.read(value) == Some(default)
}
