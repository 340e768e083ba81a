//! Which store, and where it is: the settings that the Python package reads, and flags for a person at a shell.
//!
//! ```text
//! flags  ▷  HOLDFAST_ETCD, HOLDFAST_MASTER, …  ▷  --settings or HOLDFAST_SETTINGS  ▷  what `holdfast up` recorded  ▷  defaults
//! ```
//! What stands further left counts more. Addresses are not mixed across that line blindly: if anything names an etcd or
//! a master, what `holdfast up` recorded does not count, because it is another cluster; and a `--master` brings its own
//! admin address along, because that of the environment may be another master's.
//!
//! No error repeats a value: it may be a password in the wrong place.

use std::path::PathBuf;

use holdfast_core::{ErrorKind, StoreId};
use holdfast_index::IndexConfig;
use holdfast_index_etcd::EtcdConfig;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::args::Where;
use crate::failure::Failure;
use crate::io::Host;
use crate::local::state::{self, State};
use crate::output::{object, to_value};
use crate::text::shown;

pub(crate) type Section = Map<String, Value>;

const SETTINGS: &str = "HOLDFAST_SETTINGS";
const DEFAULT_MASTER: &str = "127.0.0.1:50051";
const DEFAULT_ETCD: &str = "http://127.0.0.1:2379";

/// The settings of `holdfast.open` in Python, and the store.
const KNOWN: &[&str] = &[
    "admin",
    "budget",
    "checksum",
    "engine",
    "environment",
    "etcd",
    "etcd_options",
    "external_sample_bytes",
    "features",
    "index",
    "key",
    "key_id",
    "lease_seconds",
    "local_hostname",
    "master",
    "metadata",
    "pool_bytes",
    "prefetch",
    "protocol",
    "residency",
    "role",
    "store",
    "sweep_every",
    "timeout",
    "warm_bytes",
];

/// The settings that are times: numbers of seconds there, text with a unit here.
const TIMES: &[&str] = &[
    "session_ttl",
    "tick",
    "sweep_every",
    "call_within",
    "loss_grace",
    "connect_within",
    "close_within",
    "connect_timeout",
    "try_timeout",
    "write_timeout",
    "keep_alive",
    "watch_probe",
    "watch_patience",
];

/// Where the addresses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Flags, variables or a settings file.
    Given,
    /// The cluster that `holdfast up` has started, recorded in this folder.
    Up(PathBuf),
    /// Nothing names any: the usual ports on this host.
    Defaults,
}

/// Everything that a command needs to reach a store.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) store: Option<StoreId>,
    pub(crate) etcd: EtcdConfig,
    pub(crate) index: IndexConfig,
    pub(crate) master: String,
    pub(crate) admin: Vec<String>,
    /// Those of the engine, as its crate reads them.
    pub(crate) engine: Section,
    /// Further ones of the feature store, as its crate reads them.
    pub(crate) features: Section,
    pub(crate) protocol: String,
    pub(crate) residency: String,
    pub(crate) source: Source,
}

impl Settings {
    /// Reads everything.
    pub(crate) fn read(place: &Where, host: &Host) -> Result<Self, Failure> {
        let mut given = written(place, host)?;
        let text = |given: &Section, name: &str| given.get(name).and_then(Value::as_str).map(str::to_owned);
        let store = place
            .store
            .clone()
            .or_else(|| host.variable("HOLDFAST_STORE").map(str::to_owned))
            .or_else(|| text(&given, "store"));
        let store = store.map(|name| name.parse::<StoreId>()).transpose();
        let store = store.map_err(|error| Failure::of("this is no name of a store", &error))?;

        let flags = [&place.etcd, &place.master, &place.admin]
            .into_iter()
            .any(Option::is_some);
        let variables = ["HOLDFAST_ETCD", "HOLDFAST_MASTER", "HOLDFAST_ADMIN"];
        let named = flags
            || variables.iter().any(|name| host.variable(name).is_some())
            || ["etcd", "master", "admin"].iter().any(|name| given.contains_key(*name));
        let mut source = if named { Source::Given } else { Source::Defaults };
        if !named
            && let Ok(folder) = state::folder(place.dir.as_deref(), host)
            && let Some(up) = State::load(&folder)?
        {
            given.insert("etcd".to_owned(), to_value(&up.endpoints.etcd));
            given.insert("master".to_owned(), to_value(&up.endpoints.master));
            given.insert("admin".to_owned(), to_value(&up.endpoints.admin));
            given.insert("metadata".to_owned(), to_value(&up.endpoints.metadata));
            source = Source::Up(up.folder().to_owned());
        }
        // The etcd of `holdfast up` has no login, and a password must not be offered to it.
        let login = !matches!(source, Source::Up(_));
        let etcd = etcd(&given, place, host, login)?;
        let index: Section = section(&given, "index")?;
        let index: IndexConfig = typed("index", timed(index))?;

        // A master that a flag names is another one than the environment's, and so is its admin address.
        let from_flags = place.master.is_some();
        let variable = |name: &str| host.variable(name).filter(|_| !from_flags).map(str::to_owned);
        let setting = |name: &str| text(&given, name).filter(|_| !from_flags);
        let master = place
            .master
            .clone()
            .or_else(|| variable("HOLDFAST_MASTER"))
            .or_else(|| setting("master"));
        let master = master.unwrap_or_else(|| DEFAULT_MASTER.to_owned());
        let admin = place.admin.clone().map(Value::String);
        let admin = admin.or_else(|| variable("HOLDFAST_ADMIN").map(Value::String));
        let admin = admin.or_else(|| {
            given
                .get("admin")
                .filter(|admin| !from_flags && !admin.is_null())
                .cloned()
        });
        let admin = match admin {
            Some(admin) => addresses("admin", &admin)?,
            None => usual_admin(&master),
        };
        let metadata = variable("HOLDFAST_METADATA").or_else(|| setting("metadata"));
        let metadata = metadata.unwrap_or_else(|| "P2PHANDSHAKE".to_owned());
        let protocol = text(&given, "protocol").unwrap_or_else(|| "tcp".to_owned());
        let hostname = text(&given, "local_hostname").unwrap_or_else(|| "127.0.0.1".to_owned());
        let mut engine = object!("master": master, "admin": admin, "metadata": metadata, "protocol": protocol, "local_hostname": hostname,
            "environment": section(&given, "environment")?,);
        let named = |flag: &Option<String>, name: &str| flag.is_some() || variable(name).is_some();
        let mut first = Section::new();
        for (key, is_named) in [
            ("master", named(&place.master, "HOLDFAST_MASTER")),
            ("admin", named(&place.admin, "HOLDFAST_ADMIN")),
        ] {
            first.extend(
                engine
                    .get(key)
                    .filter(|_| is_named)
                    .map(|value| (key.to_owned(), value.clone())),
            );
        }
        merge(&mut engine, timed(section(&given, "engine")?));
        // A flag or a variable counts more than a section of the settings: a command must not act on another cluster.
        merge(&mut engine, first);
        Ok(Self {
            store,
            etcd,
            index,
            master,
            admin,
            engine: engine.as_object().cloned().unwrap_or_default(),
            features: timed(section(&given, "features")?),
            protocol,
            residency: text(&given, "residency").unwrap_or_else(|| "dram".to_owned()),
            source,
        })
    }

    /// The addresses of etcd, for a message.
    pub(crate) fn etcd_shown(&self) -> String {
        shown(&self.etcd.endpoints.join(", "))
    }

    /// Advice that fits where the addresses come from.
    pub(crate) fn advice_if_unreachable(&self, which: &str) -> String {
        match &self.source {
            Source::Up(folder) => format!(
                "these are the addresses of the cluster that `holdfast up` started ({}): `holdfast up` starts again what has \
                 ended",
                folder.display()
            ),
            Source::Given => format!(
                "is it running, and is the address right? It comes from a flag, a variable or {SETTINGS}. `holdfast doctor` \
                 looks at each part"
            ),
            Source::Defaults => format!(
                "no flag and no variable names one, so the usual address was tried: name yours ({which}), or let `holdfast up` \
                 start a cluster on this machine"
            ),
        }
    }
}

/// The settings that are written down: `--settings`, or else the variable. JSON, or the path of a file that holds it.
fn written(place: &Where, host: &Host) -> Result<Section, Failure> {
    let (text, source) = match (&place.settings, host.variable(SETTINGS)) {
        (Some(text), _) => (text.as_str(), "--settings"),
        (None, Some(text)) => (text, SETTINGS),
        (None, None) => return Ok(Section::new()),
    };
    let settings = json_or_file(source, text)?;
    if let Some(strange) = settings.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        let why = format!("there is no setting {strange:?}; there are {}", KNOWN.join(", "));
        return Err(cannot_be_read(source, why));
    }
    Ok(settings)
}

fn cannot_be_read(source: &str, why: String) -> Failure {
    let to_do = "give the settings as JSON, which begins with {, or the path of a file that holds them";
    Failure::usage(format!("the settings of {source} cannot be read"), why, to_do)
}

/// Settings that are written down: JSON, or the path of a file that holds it.
pub(crate) fn json_or_file(source: &str, text: &str) -> Result<Section, Failure> {
    let wrong = |why: String| cannot_be_read(source, why);
    let text = text.trim();
    let text = match text.starts_with('{') {
        true => text.to_owned(),
        // The path is not repeated: it may be settings with a password in them.
        false => std::fs::read_to_string(text).map_err(|error| wrong(format!("the file: {}", error.kind())))?,
    };
    let settings: Value = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("no JSON: see line {}, column {}", error.line(), error.column())))?;
    let Value::Object(settings) = settings else {
        return Err(wrong("an object of JSON is needed: names and values".to_owned()));
    };
    Ok(settings)
}

fn etcd(given: &Section, place: &Where, host: &Host, login: bool) -> Result<EtcdConfig, Failure> {
    let endpoints = match (&place.etcd, host.variable("HOLDFAST_ETCD"), given.get("etcd")) {
        (Some(text), _, _) => addresses("--etcd", &to_value(&text))?,
        (None, Some(text), _) => addresses("HOLDFAST_ETCD", &to_value(&text))?,
        (None, None, Some(value)) => addresses("etcd", value)?,
        (None, None, None) => vec![DEFAULT_ETCD.to_owned()],
    };
    let is_named = place.etcd.is_some() || host.variable("HOLDFAST_ETCD").is_some();
    let first = object!("endpoints": endpoints);
    let mut options = first.clone();
    merge(&mut options, timed(section(given, "etcd_options")?));
    if let (true, Value::Object(first)) = (is_named, first) {
        merge(&mut options, first);
    }
    if login {
        merge(&mut options, login_of(host));
    }
    let config: EtcdConfig = typed("etcd_options", options.as_object().cloned().unwrap_or_default())?;
    config
        .check()
        .map_err(|error| Failure::of("etcd cannot be asked with these settings", &error))?;
    Ok(config)
}

/// Who we are to etcd, from the environment. Secrets stay references.
fn login_of(host: &Host) -> Section {
    let mut options = Section::new();
    let mut set = |name: &str, value: Option<Value>| value.map(|value| options.insert(name.to_owned(), value));
    let text = |variable: &str| host.variable(variable).map(Value::from);
    set("user", text("HOLDFAST_ETCD_USER"));
    set("root", text("HOLDFAST_ETCD_ROOT"));
    set(
        "password",
        host.variable("HOLDFAST_ETCD_PASSWORD").map(|value| {
            let refers = value.starts_with("file:") || value.starts_with("env:");
            to_value(&(if refers { value } else { "env:HOLDFAST_ETCD_PASSWORD" }))
        }),
    );
    let plain = host.variable("HOLDFAST_ETCD_ALLOW_PLAIN_PASSWORD");
    set(
        "allow_plain_password",
        plain.map(|value| to_value(&(value == "1" || value.eq_ignore_ascii_case("true")))),
    );
    let pems = [("ca", "CA"), ("certificate", "CERTIFICATE"), ("key", "PRIVATE_KEY")];
    let tls: Section = pems
        .into_iter()
        .filter_map(|(name, variable)| Some((name.to_owned(), text(&format!("HOLDFAST_ETCD_{variable}"))?)))
        .collect();
    set("tls", (!tls.is_empty()).then_some(Value::Object(tls)));
    options
}

/// One address, several with commas between them, or a list.
fn addresses(name: &str, value: &Value) -> Result<Vec<String>, Failure> {
    let parts: Option<Vec<&str>> = match value {
        Value::String(text) => Some(text.split(',').collect()),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    };
    let parts: Vec<String> = parts
        .unwrap_or_default()
        .into_iter()
        .map(|part| part.trim().trim_end_matches('/').to_owned())
        .filter(|part| !part.is_empty())
        .collect();
    if parts.is_empty() {
        return Err(Failure::usage(
            format!("{name} names no address"),
            "an address, several with commas between them, or a list is needed",
            "write for instance http://10.0.0.1:2379,http://10.0.0.2:2379",
        ));
    }
    Ok(parts)
}

fn usual_admin(master: &str) -> Vec<String> {
    match master.rsplit_once(':') {
        Some((host, port)) if !master.contains("://") && port.parse::<u16>().is_ok() => {
            vec![format!("http://{host}:9003")]
        }
        _ => Vec::new(),
    }
}

fn section(given: &Section, name: &str) -> Result<Section, Failure> {
    match given.get(name) {
        None | Some(Value::Null) => Ok(Section::new()),
        Some(Value::Object(section)) => Ok(section.clone()),
        Some(_) => Err(Failure::usage(
            format!("the setting {name} cannot be read"),
            "it must be an object of JSON: names and values",
            "docs/command.md describes the settings",
        )),
    }
}

/// Numbers of seconds become text with a unit.
fn timed(section: Section) -> Section {
    let of = |(name, value): (String, Value)| match value.as_f64() {
        Some(seconds) if TIMES.contains(&name.as_str()) => {
            (name, to_value(&(format!("{:.0}us", (seconds * 1e6).max(0.0)))))
        }
        _ => (name, value),
    };
    section.into_iter().map(of).collect()
}

/// Sections are merged, what is not a section is replaced.
fn merge(into: &mut Value, from: Section) {
    let Value::Object(target) = into else { return };
    for (name, value) in from {
        match (target.get_mut(&name), value) {
            (Some(old @ Value::Object(_)), Value::Object(new)) => merge(old, new),
            (_, value) => {
                target.insert(name, value);
            }
        }
    }
}

pub(crate) fn typed<T: DeserializeOwned>(name: &str, section: Section) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(section)).map_err(|error| {
        let message = error.to_string();
        // Only these messages are about names; others repeat a value.
        let about_names = ["unknown field", "missing field", "unknown variant"];
        let why = if about_names.iter().any(|kind| message.starts_with(kind)) {
            message
        } else {
            "a value is not of the kind that it should be".to_owned()
        };
        Failure::new(
            ErrorKind::Invalid,
            format!("the settings of {name} cannot be read"),
            why,
            "docs/command.md describes the settings",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::wall_clock_ms;

    fn host(variables: &[(&str, &str)]) -> Host {
        let mut all = vec![("XDG_STATE_HOME", "/nowhere")];
        all.extend_from_slice(variables);
        Host {
            variables: all
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            python: None,
            connect: None,
            show_events: None,
            now_ms: wall_clock_ms,
        }
    }

    fn read(place: &Where, variables: &[(&str, &str)]) -> Settings {
        Settings::read(place, &host(variables)).expect("settings")
    }

    #[test]
    fn without_anything_the_usual_ports_are_asked() {
        let settings = read(&Where::default(), &[]);
        assert_eq!(settings.etcd.endpoints, [DEFAULT_ETCD]);
        assert_eq!(
            (settings.master.as_str(), settings.admin.as_slice()),
            (DEFAULT_MASTER, &["http://127.0.0.1:9003".to_owned()][..])
        );
        assert_eq!(settings.source, Source::Defaults);
    }

    #[test]
    fn no_section_of_the_settings_leads_to_another_cluster_than_the_one_that_is_named() {
        let written =
            r#"{"engine": {"master": "c:2", "protocol": "rdma"}, "etcd_options": {"endpoints": ["http://c:1"]}}"#;
        let settings = read(&Where::default(), &[(SETTINGS, written)]);
        assert_eq!(settings.etcd.endpoints, ["http://c:1"], "nothing else names one");
        let variables = [
            (SETTINGS, written),
            ("HOLDFAST_ETCD", "http://b:1"),
            ("HOLDFAST_MASTER", "b:3"),
        ];
        let settings = read(&Where::default(), &variables);
        assert_eq!(settings.etcd.endpoints, ["http://b:1"]);
        let text = |name: &str| settings.engine.get(name).and_then(Value::as_str).map(str::to_owned);
        assert_eq!(
            (text("master").as_deref(), text("protocol").as_deref()),
            (Some("b:3"), Some("rdma"))
        );
    }

    #[test]
    fn a_flag_counts_more_than_a_variable_and_that_more_than_settings() {
        let written = r#"{"etcd": "http://c:1", "master": "c:2", "index": {"tick": 0.5}, "etcd_options": {"root": "r", "try_timeout": 2}}"#;
        let settings = read(&Where::default(), &[(SETTINGS, written)]);
        assert_eq!(settings.etcd.endpoints, ["http://c:1"]);
        assert_eq!(
            (settings.etcd.root.as_str(), settings.etcd.try_timeout.as_secs()),
            ("r", 2)
        );
        assert_eq!(settings.index.tick.as_millis(), 500);
        assert_eq!(settings.admin, ["http://c:9003"]);

        let variables = [
            (SETTINGS, written),
            ("HOLDFAST_ETCD", "http://b:1, http://b:2/"),
            ("HOLDFAST_MASTER", "b:3"),
            ("HOLDFAST_ADMIN", "http://b:4"),
        ];
        let settings = read(&Where::default(), &variables);
        assert_eq!(settings.etcd.endpoints, ["http://b:1", "http://b:2"]);
        assert_eq!(
            (settings.master.as_str(), settings.admin[0].as_str()),
            ("b:3", "http://b:4")
        );

        let place = Where {
            master: Some("a:5".to_owned()),
            ..Where::default()
        };
        let settings = read(&place, &variables);
        assert_eq!(
            (settings.master.as_str(), settings.admin[0].as_str()),
            ("a:5", "http://a:9003"),
            "not the environment's"
        );
    }

    #[test]
    fn no_value_is_repeated() {
        for written in [
            r#"{"etcd_options": {"password": ["hunter2"], "user": "u"}}"#,
            r#"{"etcd_options": "hunter2"}"#,
            "hunter2",
            r#"{"etcd": "https://u:hunter2@host:1"}"#,
            r#"{"index": {"tick": "hunter2"}}"#,
        ] {
            let failure = Settings::read(&Where::default(), &host(&[(SETTINGS, written)])).expect_err(written);
            assert!(!failure.text(false).contains("hunter2"), "{}", failure.text(false));
            assert_eq!(failure.code, crate::failure::USAGE);
        }
    }
}
