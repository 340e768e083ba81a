//! The table says what the structs that take the settings say, and the page what the table says.
#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test says what it expects; `json!` unwraps inside"
)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tensorhold_core::StoreId;
use tensorhold_features::FeatureConfig;
use tensorhold_index::IndexConfig;
use tensorhold_index_etcd::{EtcdConfig, TlsConfig};
use tensorhold_prefetch::PrefetchConfig;
use tensorhold_settings::{ALL, differences};
use tensorhold_steward::{EtcdOptions, HttpOptions, Options, OtherStores, StoreOptions, TlsFiles};

fn value(config: impl serde::Serialize) -> Value {
    serde_json::to_value(config).expect("JSON")
}

#[test]
fn defaults_are_those_of_the_structs() {
    let none: [(&str, &str); 0] = [];
    let store = || StoreId::new("s").expect("a name");
    let features = value(FeatureConfig::new(store()));
    let etcd = EtcdConfig {
        tls: Some(TlsConfig::default()),
        ..EtcdConfig::new(["http://127.0.0.1:2379"])
    };
    let tls = TlsFiles {
        certificate: "".into(),
        key: "".into(),
        client_ca: None,
    };
    let http: HttpOptions = serde_json::from_value(json!({"tls": tls})).expect("settings");
    let others: OtherStores = serde_json::from_value(json!({})).expect("settings");
    for (section, config, elsewhere) in [
        ("etcd_options", value(etcd), &[("endpoints", "etcd")][..]),
        ("index", value(IndexConfig::default()), &none[..]),
        ("prefetch", value(PrefetchConfig::default()), &none[..]),
        (
            "features",
            features,
            &[
                ("store", ""),
                ("checksum", "checksum"),
                ("residency", "residency"),
                ("pool_bytes", "pool_bytes"),
                ("warm_bytes", "warm_bytes"),
                // In ticks there; a tick is a second.
                ("lease_ticks", "lease_seconds"),
                ("sweep_every", "sweep_every"),
                ("steward", ""),
            ][..],
        ),
        (
            "steward",
            value(Options::new([])),
            &[("stores", ""), ("others", ""), ("all", ""), ("etcd", ""), ("http", "")][..],
        ),
        ("steward.others", value(others), &none[..]),
        (
            "steward.stores[]",
            value(StoreOptions::new(store())),
            &[("store", "")][..],
        ),
        (
            "steward.etcd",
            value(EtcdOptions::new(EtcdConfig::new(["http://a:1"]))),
            &[("reach", ""), ("watch", "")][..],
        ),
        ("steward.http", value(http), &none[..]),
    ] {
        let different = differences(section, &config, elsewhere);
        assert!(different.is_empty(), "{section}: {different:?}");
    }
}

#[test]
fn a_difference_is_found() {
    let mut config = value(IndexConfig::default());
    config["tick"] = json!("2s");
    config["new_one"] = json!(1);
    assert_eq!(differences("index", &config, &[]), ["index.new_one", "index.tick"]);
}

#[test]
fn no_two_settings_share_a_path_or_a_variable() {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for one in ALL {
        for name in [Some(one.path.to_owned()), one.variable()].into_iter().flatten() {
            let other = seen.insert(name.clone(), one.path);
            assert_eq!(other, None, "{name} is also {}", one.path);
        }
        assert!(
            one.meaning.ends_with('.') && !one.meaning.contains(['|', '\n']),
            "{}: a sentence",
            one.path
        );
        assert!(
            one.default.is_empty() || !one.default_value().is_null() || one.default == "none",
            "{}",
            one.path
        );
    }
    for other in [
        "TENSORHOLD_CONFIG",
        "TENSORHOLD_METRICS",
        "TENSORHOLD_OTLP_ENDPOINT",
        "TENSORHOLD_UNTESTED_MOONCAKE",
    ] {
        assert_eq!(seen.get(other), None, "{other} is no setting");
    }
}

#[test]
fn variables_have_the_names_that_programs_use() {
    for (path, name) in [
        ("store", "TENSORHOLD_STORE"),
        ("etcd", "TENSORHOLD_ETCD"),
        ("master", "TENSORHOLD_MASTER"),
        ("admin", "TENSORHOLD_ADMIN"),
        ("metadata", "TENSORHOLD_METADATA"),
        ("key", "TENSORHOLD_KEY"),
        ("key_id", "TENSORHOLD_KEY_ID"),
        ("etcd_options.user", "TENSORHOLD_ETCD_USER"),
        ("etcd_options.password", "TENSORHOLD_ETCD_PASSWORD"),
        ("etcd_options.root", "TENSORHOLD_ETCD_ROOT"),
        (
            "etcd_options.allow_plain_password",
            "TENSORHOLD_ETCD_ALLOW_PLAIN_PASSWORD",
        ),
        ("etcd_options.tls.ca", "TENSORHOLD_ETCD_CA"),
        ("etcd_options.tls.certificate", "TENSORHOLD_ETCD_CERTIFICATE"),
        ("etcd_options.tls.key", "TENSORHOLD_ETCD_PRIVATE_KEY"),
        ("index.tick", "TENSORHOLD_INDEX_TICK"),
        ("steward.http.tls.key", "TENSORHOLD_STEWARD_HTTP_TLS_KEY"),
    ] {
        let variable = tensorhold_settings::setting(path).and_then(|one| one.variable());
        assert_eq!(variable.as_deref(), Some(name));
    }
    assert_eq!(
        tensorhold_settings::setting("steward.stores").and_then(|one| one.variable()),
        None
    );
}

#[test]
fn the_page_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let page = std::fs::read_to_string(page).expect("docs/settings.md");
    assert_eq!(
        page,
        tensorhold_settings::page(),
        "run: cargo run -p tensorhold-settings --example settings_page"
    );
}
