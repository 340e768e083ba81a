//! Which store, and where it is: flags for a person at a shell, over the settings that the Python package reads, too
//! (`tensorhold_settings`).

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tensorhold_core::{Error, ErrorKind, StoreId};
use tensorhold_index::IndexConfig;
use tensorhold_index_etcd::EtcdConfig;
use tensorhold_settings::Given;

use crate::args::Where;
use crate::failure::Failure;
use crate::io::Host;
use crate::local::state::{self, State};
use crate::output::to_value;
use crate::text::shown;

pub(crate) type Section = Map<String, Value>;

/// The settings that name a cluster.
const ADDRESSES: [&str; 3] = ["etcd", "master", "admin"];
const BIND: &str = "MC_TCP_BIND_ADDRESS";

/// Where the addresses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Flags, variables or a file of settings.
    Given,
    /// The cluster that `tensorhold up` has started, recorded in this folder.
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
    /// Whether etcd is the one that `tensorhold up` has started, however it was named: `tensorhold env` names it by variables.
    pub(crate) etcd_is_of_up: bool,
    /// All of them, as they were read.
    pub(crate) all: tensorhold_settings::Settings,
}

impl Settings {
    /// Reads everything.
    pub(crate) fn read(place: &Where, host: &Host) -> Result<Self, Failure> {
        let (all, source) = all(place, host)?;
        let store = all.given("store").and_then(|found| found.value.as_str());
        let store = store.map(str::parse::<StoreId>).transpose();
        let store = store.map_err(|error| Failure::of("this is no name of a store", &error))?;
        let mut etcd = all.section("etcd_options");
        etcd.insert("endpoints".to_owned(), all.value("etcd"));
        let etcd: EtcdConfig = typed("etcd_options", etcd)?;
        etcd.check()
            .map_err(|error| Failure::of("etcd cannot be asked with these settings", &error))?;
        // A record that cannot be read says nothing of another cluster.
        let up = state::folder(place.dir.as_deref(), host).ok();
        let up = up.and_then(|folder| State::load(&folder).ok().flatten());
        let etcd_is_of_up = up.is_some_and(|up| etcd.endpoints == [up.endpoints.etcd]);
        let master = all.text("master");
        let admin = match all.given("admin") {
            Some(found) => serde_json::from_value(found.value.clone()).unwrap_or_default(),
            None => usual_admin(&master),
        };
        let mut engine = all.section("engine");
        for name in ["master", "metadata", "protocol", "local_hostname"] {
            engine.insert(name.to_owned(), all.value(name));
        }
        engine.insert("admin".to_owned(), to_value(&admin));
        let environment = all.given("environment").map(|found| found.value.clone());
        engine.insert(
            "environment".to_owned(),
            environment.unwrap_or_else(|| Value::Object(Section::new())),
        );
        Ok(Self {
            store,
            etcd,
            index: typed("index", all.section("index"))?,
            master,
            admin,
            engine,
            features: all.section("features"),
            protocol: all.text("protocol"),
            residency: all.text("residency"),
            source,
            etcd_is_of_up,
            all,
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
                "these are the addresses of the cluster that `tensorhold up` started ({}): `tensorhold up` starts again what has \
                 ended",
                folder.display()
            ),
            Source::Given => {
                "is it running, and is the address right? `tensorhold settings` says where it comes from, `tensorhold \
                              doctor` looks at each part"
                    .to_owned()
            }
            Source::Defaults => format!(
                "no flag and no variable names one, so the usual address was tried: name yours ({which}), or let `tensorhold up` \
                 start a cluster on this machine"
            ),
        }
    }
}

/// All settings, and where the addresses come from.
pub(crate) fn all(place: &Where, host: &Host) -> Result<(tensorhold_settings::Settings, Source), Failure> {
    let flags = [
        ("store", &place.store),
        ("etcd", &place.etcd),
        ("master", &place.master),
        ("admin", &place.admin),
    ];
    let flags: Vec<_> = flags
        .into_iter()
        .filter_map(|(path, flag)| Some((path, flag.clone()?)))
        .collect();
    let given = Given {
        flags: &flags,
        variables: Some(&host.variables),
        config: place.config.as_deref(),
        ..Given::default()
    };
    let wrong = |error: Error| Failure::of("the settings cannot be read", &error);
    let read = tensorhold_settings::Settings::read(&given).map_err(wrong)?;
    let Some(up) = recorded(&given, &read, place.dir.as_deref(), host)? else {
        let is_given = ADDRESSES.iter().any(|path| read.given(path).is_some());
        return Ok((read, if is_given { Source::Given } else { Source::Defaults }));
    };
    let given = Given {
        recorded: &addresses(&up, host),
        ..given
    };
    let read = tensorhold_settings::Settings::read(&given).map_err(wrong)?;
    Ok((read, Source::Up(up.folder().to_owned())))
}

/// The settings for a program in this process that has values of its own for those that are `named`: what variables and
/// the file say, and with `up` also what `tensorhold up` recorded.
///
/// # Errors
/// `Invalid`, as [`tensorhold_settings::Settings::read`], or if the record of `tensorhold up` cannot be read.
pub fn settings_beside(
    named: &[&str],
    up: bool,
    host: &Host,
) -> tensorhold_core::Result<tensorhold_settings::Settings> {
    let given = Given {
        named,
        variables: Some(&host.variables),
        ..Given::default()
    };
    let read = tensorhold_settings::Settings::read(&given)?;
    if !up {
        return Ok(read);
    }
    let up = recorded(&given, &read, None, host)
        .map_err(|failure| Error::invalid("settings.read", failure.what).with("why", failure.why))?;
    match up {
        Some(up) => tensorhold_settings::Settings::read(&Given {
            recorded: &addresses(&up, host),
            ..given
        }),
        None => Ok(read),
    }
}

/// The cluster of `tensorhold up`, if there is one and nothing names another. The record is looked at only then: a damaged
/// one must not keep a command from another cluster.
fn recorded(
    given: &Given<'_>,
    read: &tensorhold_settings::Settings,
    dir: Option<&Path>,
    host: &Host,
) -> Result<Option<State>, Failure> {
    let is_named = |path: &&str| given.named.contains(path) || read.given(path).is_some();
    match state::folder(dir, host) {
        Ok(folder) if !ADDRESSES.iter().any(is_named) => State::load(&folder),
        _ => Ok(None),
    }
}

fn addresses(up: &State, host: &Host) -> Vec<(&'static str, String)> {
    let mut addresses = vec![
        ("etcd", up.endpoints.etcd.clone()),
        ("master", up.endpoints.master.clone()),
        ("admin", up.endpoints.admin.clone()),
        ("metadata", up.endpoints.metadata.clone()),
    ];
    // As `tensorhold env` prints it: what this process opens is for this machine, too.
    if host.variable(BIND).is_none() {
        addresses.push(("environment", format!("{BIND}=127.0.0.1")));
    }
    addresses
}

pub(crate) fn usual_admin(master: &str) -> Vec<String> {
    match master.rsplit_once(':') {
        Some((host, port)) if !master.contains("://") && port.parse::<u16>().is_ok() => {
            vec![format!("http://{host}:9003")]
        }
        _ => Vec::new(),
    }
}

pub(crate) fn typed<T: DeserializeOwned>(name: &str, section: Section) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(section)).map_err(|error| {
        let message = error.to_string();
        // Only these messages are about names; others repeat a value.
        let about_names = ["unknown field", "missing field"];
        let why = if about_names.iter().any(|kind| message.starts_with(kind)) {
            message
        } else {
            "a value is not of the kind that it should be".to_owned()
        };
        Failure::new(
            ErrorKind::Invalid,
            format!("the settings of {name} cannot be read"),
            why,
            "docs/settings.md has every setting",
        )
    })
}

#[cfg(test)]
mod tests {
    use tensorhold_settings::CONFIG;

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

    /// A file of settings that the environment names.
    fn written(text: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tensorhold.toml");
        std::fs::write(&path, text).expect("written");
        (folder, path.display().to_string())
    }

    fn read(place: &Where, variables: &[(&str, &str)]) -> Settings {
        Settings::read(place, &host(variables)).expect("settings")
    }

    #[test]
    fn without_anything_the_usual_ports_are_asked() {
        let settings = read(&Where::default(), &[]);
        assert_eq!(settings.etcd.endpoints, ["http://127.0.0.1:2379"]);
        assert_eq!(
            (settings.master.as_str(), settings.admin.as_slice()),
            ("127.0.0.1:50051", &["http://127.0.0.1:9003".to_owned()][..])
        );
        assert_eq!(settings.source, Source::Defaults);
    }

    #[test]
    fn a_flag_counts_more_than_a_variable_and_that_more_than_settings() {
        let (_folder, file) = written(
            "etcd = 'http://c:1'\nmaster = 'c:2'\nindex.tick = '500ms'\netcd_options = { root = 'r', try_timeout = 2 }",
        );
        let settings = read(&Where::default(), &[(CONFIG, &file)]);
        assert_eq!(settings.etcd.endpoints, ["http://c:1"]);
        assert_eq!(
            (settings.etcd.root.as_str(), settings.etcd.try_timeout.as_secs()),
            ("r", 2)
        );
        assert_eq!(settings.index.tick.as_millis(), 500);
        assert_eq!(settings.admin, ["http://c:9003"]);

        let variables = [
            (CONFIG, file.as_str()),
            ("TENSORHOLD_ETCD", "http://b:1, http://b:2/"),
            ("TENSORHOLD_MASTER", "b:3"),
            ("TENSORHOLD_ADMIN", "http://b:4"),
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
    fn the_etcd_of_up_is_known_also_by_its_address() {
        let scratch = tempfile::tempdir().expect("a folder");
        let home = scratch.path().display().to_string();
        std::fs::create_dir(scratch.path().join("tensorhold")).expect("a folder");
        let record = r#"{"version": 1, "ready": true, "processes": [],
            "endpoints": {"etcd": "http://127.0.0.1:7", "master": "m:1", "admin": "http://m:2", "metadata": "P2PHANDSHAKE"}}"#;
        std::fs::write(scratch.path().join("tensorhold/state.json"), record).expect("written");
        let named = |etcd: &str| {
            let settings = read(
                &Where::default(),
                &[("XDG_STATE_HOME", &home), ("TENSORHOLD_ETCD", etcd)],
            );
            (settings.source, settings.etcd_is_of_up)
        };
        assert_eq!(
            named("http://127.0.0.1:7"),
            (Source::Given, true),
            "as `tensorhold env` names it"
        );
        assert_eq!(named("http://127.0.0.1:8"), (Source::Given, false));
        std::fs::write(scratch.path().join("tensorhold/state.json"), "damaged").expect("written");
        assert_eq!(named("http://127.0.0.1:7"), (Source::Given, false));
    }

    #[test]
    fn no_value_is_repeated() {
        for text in [
            "hunter2",
            "etcd_options = 'hunter2'",
            "etcd = 'https://u:hunter2@host:1'",
            "index.tick = 'hunter2'",
            "index.grace_ticks = 99999999999999999999",
        ] {
            let (_folder, file) = written(text);
            let failure = Settings::read(&Where::default(), &host(&[(CONFIG, &file)])).expect_err(text);
            assert!(!failure.text(false).contains("hunter2"), "{}", failure.text(false));
            assert_eq!(failure.code, crate::failure::USAGE);
        }
    }

    #[test]
    fn a_program_with_values_of_its_own_reads_the_rest() {
        let host = host(&[
            ("TENSORHOLD_MASTER", "b:3"),
            ("TENSORHOLD_METADATA", "m"),
            ("TENSORHOLD_INDEX_TICK", "2s"),
        ]);
        let beside = settings_beside(&["master"], true, &host).expect("settings");
        assert_eq!(beside.given("metadata"), None, "another cluster's");
        assert_eq!(beside.value("index.tick"), 2.0);
    }
}
