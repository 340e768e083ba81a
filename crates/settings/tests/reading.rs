//! Which place counts, what is refused, and what no error says.
#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test says what it expects; `json!` unwraps inside"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use tensorhold_core::Result;
use tensorhold_settings::{CONFIG, Given, Settings, Source};

/// A folder with a file of settings.
struct File {
    _folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str, mode: u32) -> Self {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("tensorhold.toml");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions");
        Self { _folder: folder, path }
    }
}

fn variables(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn read_file(text: &str, all: &[(&str, &str)]) -> Result<Settings> {
    let file = File::new(text, 0o644);
    Settings::read(&Given {
        variables: Some(&variables(all)),
        config: Some(&file.path),
        ..Given::default()
    })
}

const FILE: &str = r#"
store = "run"
master = "c:2"
admin = ["http://c:3/"]
etcd = "http://c:1, http://c:4"
environment = { MC_A = "file", MC_B = "file" }
sweep_every = "none"

[etcd_options]
root = "r"
user = "u"
password = "file:/password"
try_timeout = 2
tls = { ca = "/ca.pem" }

[index]
tick = "500ms"

[[steward.stores]]
store = "run"
audit_every = "1h"
"#;

#[test]
fn a_file_is_read_with_its_lines() {
    let settings = read_file(FILE, &[]).expect("settings");
    assert_eq!(settings.value("etcd"), json!(["http://c:1", "http://c:4"]));
    assert_eq!(settings.value("admin"), json!(["http://c:3"]));
    assert_eq!(
        settings.section("etcd_options"),
        *json!({"root": "r", "user": "u", "password": "file:/password", "try_timeout": 2.0, "tls": {"ca": "/ca.pem"}})
            .as_object()
            .expect("an object")
    );
    assert_eq!(
        settings.given("index.tick").map(|one| &one.source),
        Some(&Source::File(17))
    );
    assert_eq!(settings.value("index.tick"), json!(0.5));
    assert_eq!(
        settings.value("steward.stores"),
        json!([{"store": "run", "audit_every": 3600.0}])
    );
    assert_eq!(settings.given("sweep_every").map(|one| &one.value), Some(&Value::Null));
    // What nothing says.
    assert_eq!(settings.value("pool_bytes"), json!(1 << 30));
    assert_eq!(settings.given("pool_bytes"), None);
    let all = settings.all();
    let pool = all
        .iter()
        .find(|one| one.setting.path == "pool_bytes")
        .expect("in force");
    assert_eq!((&pool.value, &pool.source), (&json!(1 << 30), &Source::Default));
}

#[test]
fn a_flag_counts_more_than_a_variable_and_that_more_than_the_file() {
    let file = File::new(FILE, 0o644);
    let given = variables(&[
        (CONFIG, &file.path.display().to_string()),
        ("TENSORHOLD_STORE", "by-variable"),
        ("TENSORHOLD_INDEX_TICK", "0.25"),
        ("TENSORHOLD_ENVIRONMENT", "MC_A=variable"),
        ("TENSORHOLD_ROLE", ""),
    ]);
    let read = |flags: &[(&'static str, String)]| {
        let given = Given {
            flags,
            variables: Some(&given),
            ..Given::default()
        };
        Settings::read(&given).expect("settings")
    };
    let settings = read(&[]);
    assert_eq!(
        (settings.text("store").as_str(), settings.value("index.tick")),
        ("by-variable", json!(0.25))
    );
    assert_eq!(
        settings.value("environment"),
        json!({"MC_A": "variable", "MC_B": "file"})
    );
    assert_eq!(settings.given("role"), None, "an empty variable is none");
    assert_eq!(settings.config(), Some(file.path.as_path()));
    let settings = read(&[("store", "by-flag".to_owned())]);
    assert_eq!(
        settings.given("store").map(|one| (&one.value, &one.source)),
        Some((&json!("by-flag"), &Source::Flag))
    );
}

#[test]
fn the_addresses_of_two_clusters_are_not_mixed() {
    let settings = read_file(FILE, &[("TENSORHOLD_MASTER", "b:1")]).expect("settings");
    assert_eq!(
        (settings.text("master").as_str(), settings.given("admin")),
        ("b:1", None),
        "not the file's"
    );
    assert_eq!(
        settings.text("etcd_options.user"),
        "u",
        "the file's etcd has the file's login"
    );

    let settings = read_file(FILE, &[("TENSORHOLD_ETCD", "http://b:1")]).expect("settings");
    let options = settings.section("etcd_options");
    assert_eq!(
        options.keys().collect::<Vec<_>>(),
        ["root", "try_timeout"],
        "no login for another etcd"
    );
    assert_eq!(settings.text("master"), "c:2");

    // A login above an address is for that address.
    let settings = read_file("etcd = \"http://c:1\"", &[("TENSORHOLD_ETCD_USER", "u")]).expect("settings");
    assert_eq!(settings.text("etcd_options.user"), "u");

    // The caller's own addresses close as flags do.
    let given = variables(&[
        ("TENSORHOLD_MASTER", "b:1"),
        ("TENSORHOLD_ADMIN", "http://b:2"),
        ("TENSORHOLD_ETCD_USER", "u"),
    ]);
    let given = Given {
        named: &["master", "etcd"],
        variables: Some(&given),
        ..Given::default()
    };
    let settings = Settings::read(&given).expect("settings");
    assert_eq!(settings.given("admin"), None);
    assert_eq!(settings.given("etcd_options.user"), None);
}

#[test]
fn what_up_recorded_counts_only_if_nothing_names_an_address() {
    let recorded = [("etcd", "http://up:1".to_owned()), ("master", "up:2".to_owned())];
    let read = |all: &[(&str, &str)]| {
        let given = variables(all);
        let given = Given {
            variables: Some(&given),
            recorded: &recorded,
            ..Given::default()
        };
        Settings::read(&given).expect("settings")
    };
    let settings = read(&[("TENSORHOLD_ETCD_USER", "u"), ("TENSORHOLD_ETCD_PASSWORD", "hunter2")]);
    assert_eq!(settings.given("etcd").map(|one| &one.source), Some(&Source::Up));
    assert!(settings.section("etcd_options").is_empty(), "its etcd has no login");
    for name in ["TENSORHOLD_ETCD", "TENSORHOLD_MASTER", "TENSORHOLD_ADMIN"] {
        let settings = read(&[(name, "http://b:1")]);
        let is_up = settings.all().iter().any(|one| one.source == Source::Up);
        assert!(!is_up, "{name} names another cluster");
    }
}

#[test]
fn an_unknown_setting_is_refused_with_the_nearest_one() {
    for (text, line, unknown, nearest) in [
        ("\n[index]\ntik = 1\n", "file:3", "index.tik", "index.tick"),
        ("etcdd = 1", "file:1", "etcdd", "etcd"),
        (
            "[[steward.stores]]\nstore = 's'\naudit_evry = 1",
            "file:3",
            "steward.stores[].audit_evry",
            "steward.stores[].audit_every",
        ),
        ("[prefetch]\nkep = 1", "file:2", "prefetch.kep", "prefetch.keep"),
    ] {
        let error = read_file(text, &[]).expect_err(text);
        assert_eq!(error.fact("setting"), Some(unknown));
        assert_eq!(error.fact("from"), Some(line));
        assert_eq!(error.fact("nearest"), Some(nearest));
    }
}

#[test]
fn no_error_repeats_a_value() {
    let texts = [
        "hunter2",
        "store = \"hunter2",
        "index = \"hunter2\"",
        "[index]\ntick = \"hunter2\"",
        "[etcd_options]\npassword = [\"hunter2\"]",
        "[etcd_options]\npassword = \"hunter2\"",
        "[etcd_options.tls]\nkey = \"-----BEGIN hunter2\"",
        "key = { a = \"hunter2\" }",
        "budget = \"hunter2\"",
        "etcd = \"\"",
        "[[steward.stores]]\nsweep_every = \"hunter2\"",
        "steward.stores = [\"hunter2\"]",
    ];
    for text in texts {
        let error = read_file(text, &[]).expect_err(text);
        let said = format!("{error} {error:?} {:?}", error.context());
        assert!(!said.contains("hunter2"), "{said}");
        assert!(!said.contains("/tensorhold.toml"), "{said}");
    }
    for (name, text) in [
        ("TENSORHOLD_INDEX_TICK", "hunter2"),
        (CONFIG, "hunter2"),
        ("TENSORHOLD_CHECKSUM", "hunter2"),
    ] {
        let given = variables(&[(name, text)]);
        let given = Given {
            variables: Some(&given),
            ..Given::default()
        };
        let error = Settings::read(&given).expect_err(name);
        let said = format!("{error} {error:?} {:?}", error.context());
        assert!(!said.contains("hunter2") && said.contains(name), "{said}");
    }
}

#[test]
fn a_secret_stands_in_no_file_that_others_may_read() {
    let text = "[etcd_options]\nuser = \"u\"\npassword = \"hunter2\"";
    for mode in [0o644, 0o640, 0o604] {
        let file = File::new(text, mode);
        let given = Given {
            config: Some(&file.path),
            ..Given::default()
        };
        let error = Settings::read(&given).expect_err("others may read it");
        assert_eq!(error.fact("setting"), Some("etcd_options.password"), "{mode:o}");
    }
    let file = File::new(text, 0o600);
    let given = Given {
        config: Some(&file.path),
        ..Given::default()
    };
    let settings = Settings::read(&given).expect("only its owner may");
    let password = settings.given("etcd_options.password").expect("given");
    assert_eq!(
        (password.value.as_str(), password.shown()),
        (Some("hunter2"), json!("(hidden)"))
    );
    assert!(!format!("{settings:?}").contains("hunter2"), "{settings:?}");
}

#[test]
fn a_secret_in_a_variable_is_passed_on_as_a_reference() {
    let given = variables(&[
        ("TENSORHOLD_ETCD_PASSWORD", "hunter2"),
        ("TENSORHOLD_KEY", "file:/key"),
        ("TENSORHOLD_ETCD_CA", "/ca.pem"),
        ("TENSORHOLD_ETCD_PRIVATE_KEY", "-----BEGIN hunter2\n"),
    ]);
    let given = Given {
        variables: Some(&given),
        ..Given::default()
    };
    let settings = Settings::read(&given).expect("settings");
    assert_eq!(
        Value::Object(settings.section("")),
        json!({
            "key": "file:/key",
            "etcd_options": {
                "password": "env:TENSORHOLD_ETCD_PASSWORD",
                "tls": {"ca": "/ca.pem", "key": "env:TENSORHOLD_ETCD_PRIVATE_KEY"},
            },
        })
    );
}
