//! What a person may write, and what a log may show.

use super::*;

fn from_json(text: &str) -> Result<EtcdConfig, serde_json::Error> {
    serde_json::from_str(text)
}

#[test]
fn endpoints_are_enough() {
    let config = from_json(r#"{"endpoints": ["http://a:2379"]}"#).expect("settings");
    assert_eq!(config, EtcdConfig::new(["http://a:2379"]));
    config.check().expect("lawful");
}

#[test]
fn settings_survive_a_round_trip() {
    let mut config = EtcdConfig::new(["https://a:2379", "https://b:2379"]);
    config.try_timeout = Duration::from_millis(250);
    config.user = Some("u".into());
    config.password = Some(Secret::new("env:ETCD_PASSWORD"));
    config.tls = Some(TlsConfig {
        ca: Some(Pem::new("/etc/ca.pem")),
        ..TlsConfig::default()
    });
    let text = serde_json::to_string(&config).expect("text");
    assert_eq!(from_json(&text).expect("settings"), config);
    config.password = Some(Secret::new("hunter2"));
    let error = serde_json::to_string(&config).expect_err("a secret does not travel");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let mut received = from_json(&text).expect("settings");
    received.set_secret("password", "hunter2".to_owned()).expect("a secret");
    assert_eq!(received, config);
    assert!(received.set_secret("passwrod", "hunter2".to_owned()).is_err());
}

#[test]
fn a_misspelt_setting_is_an_error() {
    let error = from_json(r#"{"endpoints": ["http://a:1"], "tryTimeout": "1s"}"#).expect_err("unknown");
    assert!(error.to_string().contains("tryTimeout"), "{error}");
    let error = from_json(r#"{"endpoints": ["http://a:1"], "try_timeout": "soon"}"#).expect_err("no time");
    assert!(error.to_string().contains("250ms"), "{error}");
}

#[test]
fn what_is_wrong_is_said() {
    let ok = EtcdConfig::new(["https://a:1"]);
    type Change = fn(&mut EtcdConfig);
    let broken: [(&str, Change); 11] = [
        ("no endpoint", |c| c.endpoints.clear()),
        ("begins with http", |c| c.endpoints.push("a:1".into())),
        ("not https", |c| {
            c.endpoints = vec!["http://a:1".into()];
            c.tls = Some(TlsConfig::default());
        }),
        ("root", |c| c.root.clear()),
        ("root", |c| c.root = "/abs".into()),
        ("root", |c| c.root = "a//b".into()),
        ("password", |c| c.user = Some("u".into())),
        ("key", |c| {
            c.tls = Some(TlsConfig {
                certificate: Some(Pem::new("x")),
                ..TlsConfig::default()
            })
        }),
        ("allow_plain_password", |c| {
            c.endpoints.push("http://b:1".into());
            (c.user, c.password) = (Some("u".into()), Some(Secret::new("env:P")));
        }),
        ("user or password in it", |c| {
            c.endpoints = vec!["https://u:hunter2@a:1".into()]
        }),
        ("zero", |c| c.keep_alive = Duration::ZERO),
    ];
    ok.check().expect("lawful");
    for (says, change) in broken {
        let mut config = ok.clone();
        change(&mut config);
        let error = config.check().expect_err(says);
        assert!(error.message().contains(says), "{error} should speak of {says:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn no_log_shows_a_secret() {
    let mut config = EtcdConfig::new(["https://a:1"]);
    config.user = Some("u".into());
    config.password = Some(Secret::new("hunter2"));
    let key = "-----BEGIN PRIVATE KEY-----\nhunter3\n-----END PRIVATE KEY-----";
    config.tls = Some(TlsConfig {
        ca: Some(Pem::new("/ca.pem")),
        key: Some(Pem::new(key)),
        ..TlsConfig::default()
    });
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter"), "{shown}");
    assert!(shown.contains("/ca.pem"), "a path is no secret: {shown}");
}
