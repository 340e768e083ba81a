//! The settings of a steward.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, Result, StoreId};
use tensorhold_features::FeatureConfig;
use tensorhold_index_etcd::EtcdConfig;

use crate::http::auth::TokenEntry;

/// What a steward looks after, and how. Times are written as `250ms`, `5s` or `2m`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The stores with settings of their own. Default: none, then `others` must be given.
    #[serde(default)]
    pub stores: Vec<StoreOptions>,
    /// How to look after all other stores of the index, also those that begin later; none to leave them alone. Default:
    /// none.
    #[serde(default)]
    pub others: Option<OtherStores>,
    /// Whether to change nothing: no sweeps, no frees, no audit that repairs. It reports all the same. Default: false.
    #[serde(default)]
    pub read_only: bool,
    /// How often sessions, budgets and etcd are looked at. Default: 15 s.
    #[serde(default = "default_look_every", with = "tensorhold_core::duration")]
    pub look_every: Duration,
    /// The etcd whose storage is watched; none for no watch. Default: none.
    #[serde(default)]
    pub etcd: Option<EtcdOptions>,
    /// The HTTP interface; none for none. Default: none.
    #[serde(default)]
    pub http: Option<HttpOptions>,
}

/// One store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreOptions {
    /// Its name. Default: none, it must be given.
    pub store: StoreId,
    /// How often it is swept. Default: 1 s.
    #[serde(default = "default_sweep_every", with = "tensorhold_core::duration")]
    pub sweep_every: Duration,
    /// How many due records one part of a sweep examines. Default: 1,000.
    #[serde(default = "default_sweep_limit")]
    pub sweep_limit: usize,
    /// The most samples that are freed in a second; none for no limit. Default: none.
    #[serde(default)]
    pub frees_per_second: Option<u32>,
    /// As in the settings of the store's processes: the key prefixes that it may adopt. Default: none.
    #[serde(default)]
    pub adopt_prefixes: Vec<String>,
    /// As in the settings of the store's processes: for how long objects must be missing before a sample is lost; none for
    /// the usual time. Default: none.
    #[serde(default, with = "tensorhold_core::duration::option")]
    pub loss_grace: Option<Duration>,
    /// How often the engine's objects and the records are compared; none for never. Default: none.
    #[serde(default, with = "tensorhold_core::duration::option")]
    pub audit_every: Option<Duration>,
    /// End the store when no process has had it open for so long; none for never. At least 10 s, and three times
    /// `look_every`. Default: none.
    #[serde(default, with = "tensorhold_core::duration::option")]
    pub end_when_unused: Option<Duration>,
    /// Warn when less than this part of the budget is free. Default: 0.1.
    #[serde(default = "default_warn_free")]
    pub warn_free: f64,
}

/// Stores that have no settings of their own. What is not here is as [`StoreOptions`] has it by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherStores {
    /// The most samples of a store that are freed in a second; none for no limit. Default: none.
    #[serde(default)]
    pub frees_per_second: Option<u32>,
    /// As in the settings of the stores' processes: the key prefixes that they may adopt. Default: none.
    #[serde(default)]
    pub adopt_prefixes: Vec<String>,
    /// As in the settings of the stores' processes: for how long objects must be missing before a sample is lost; none for
    /// the usual time. Default: none.
    #[serde(default, with = "tensorhold_core::duration::option")]
    pub loss_grace: Option<Duration>,
    /// How often the engine's objects and the records are compared; none for never. Default: none.
    #[serde(default, with = "tensorhold_core::duration::option")]
    pub audit_every: Option<Duration>,
    /// End a store when no process has had it open for so long; none for never. Default: none.
    #[serde(default, with = "tensorhold_core::duration::option")]
    pub end_when_unused: Option<Duration>,
    /// Forget a store when no process has had it open for so long and it is empty; none for never. Its budget is all that is
    /// lost. At least 10 s. Default: 24 h, so that a run that is started again the next day finds its budget.
    #[serde(default = "default_forget_after", with = "tensorhold_core::duration::option")]
    pub forget_after: Option<Duration>,
}

impl Default for OtherStores {
    fn default() -> Self {
        Self {
            frees_per_second: None,
            adopt_prefixes: Vec::new(),
            loss_grace: None,
            audit_every: None,
            end_when_unused: None,
            forget_after: default_forget_after(),
        }
    }
}

impl OtherStores {
    /// The settings of one of them.
    pub fn of(&self, store: StoreId) -> StoreOptions {
        StoreOptions {
            frees_per_second: self.frees_per_second,
            adopt_prefixes: self.adopt_prefixes.clone(),
            loss_grace: self.loss_grace,
            audit_every: self.audit_every,
            end_when_unused: self.end_when_unused,
            ..StoreOptions::new(store)
        }
    }
}

/// The etcd whose storage is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdOptions {
    /// How to reach it.
    pub reach: EtcdConfig,
    /// Its quota in bytes (`--quota-backend-bytes`), for releases that do not tell. Default: 2 GiB, etcd's own default.
    #[serde(default = "default_quota")]
    pub quota: u64,
    /// Warn when a node's file has reached this part of the quota. Default: 0.7.
    #[serde(default = "default_warn_full")]
    pub warn_full: f64,
    /// Whether to defragment a node whose file has reached that part and is less than half used: one node at a time, the
    /// leader last, and only by the steward of the first store. The node serves nothing meanwhile. Default: false.
    #[serde(default)]
    pub defragment: bool,
    /// Whether to compact it. Default: `auto`.
    #[serde(default)]
    pub compact: Compact,
    /// How often, and how much history is kept at least: at each interval, etcd forgets what was before the last one. At
    /// least 10 s. Default: 5 min.
    #[serde(default = "default_compact_every", with = "tensorhold_core::duration")]
    pub compact_every: Duration,
}

impl EtcdOptions {
    /// The defaults, for this etcd.
    pub fn new(reach: EtcdConfig) -> Self {
        Self {
            reach,
            quota: default_quota(),
            warn_full: default_warn_full(),
            defragment: false,
            compact: Compact::Auto,
            compact_every: default_compact_every(),
        }
    }

    /// Why etcd is not compacted by these settings, if it is not.
    pub(crate) fn never_compacts(&self, read_only: bool) -> Option<&'static str> {
        match self.compact {
            Compact::Off => Some("it is off in the settings: etcd or its operator compacts"),
            _ if read_only => Some("this steward changes nothing (`read_only`)"),
            Compact::Auto | Compact::On => None,
        }
    }
}

/// Whether a steward compacts etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compact {
    /// If all its keys are of this index: whoever else uses an etcd may need its history.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: etcd does it by itself, or its operator.
    Off,
}

impl FromStr for Compact {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(Error::invalid("steward.config", "`auto`, `on` or `off`").with("setting", "etcd.compact")),
        }
    }
}

/// The HTTP interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpOptions {
    /// Where to listen. An address that is not loopback needs tokens and TLS. Default: 127.0.0.1:9464.
    #[serde(default = "default_listen")]
    pub listen: SocketAddr,
    /// Who may use the admin interface. Without tokens everybody on this machine may. Default: none.
    #[serde(default)]
    pub tokens: Vec<TokenEntry>,
    /// The certificate, and its key. Default: none, plain HTTP.
    #[serde(default)]
    pub tls: Option<TlsFiles>,
    /// How long a request may take. Default: 30 s.
    #[serde(default = "default_within", with = "tensorhold_core::duration")]
    pub within: Duration,
    /// The most requests at a time, and the most connections. Default: 64.
    #[serde(default = "default_most")]
    pub most: usize,
}

/// A certificate and its key, as PEM files. They are read again for new connections, so that renewed ones are used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate, and those up to the root if there are some in between.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority whose clients are let in; none to ask clients for no certificate. Tokens are asked for all the same.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}

fn default_look_every() -> Duration {
    Duration::from_secs(15)
}
fn default_sweep_every() -> Duration {
    Duration::from_secs(1)
}
fn default_sweep_limit() -> usize {
    1000
}
#[expect(clippy::unnecessary_wraps, reason = "the default of a setting that may be none")]
fn default_forget_after() -> Option<Duration> {
    Some(Duration::from_secs(24 * 3600))
}
pub(crate) fn default_warn_free() -> f64 {
    0.1
}
fn default_quota() -> u64 {
    2 << 30
}
fn default_warn_full() -> f64 {
    0.7
}
fn default_compact_every() -> Duration {
    Duration::from_secs(300)
}
fn default_listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9464))
}
fn default_within() -> Duration {
    Duration::from_secs(30)
}
fn default_most() -> usize {
    64
}

impl Options {
    /// The defaults, for these stores.
    pub fn new(stores: impl IntoIterator<Item = StoreId>) -> Self {
        Self {
            stores: stores.into_iter().map(StoreOptions::new).collect(),
            others: None,
            read_only: false,
            look_every: default_look_every(),
            etcd: None,
            http: None,
        }
    }

    /// Checks what can be checked without a cluster.
    pub fn validate(&self) -> Result<()> {
        let refuse =
            |setting: &'static str, why: &str| Err(Error::invalid("steward.config", why).with("setting", setting));
        if self.stores.is_empty() && self.others.is_none() {
            return refuse("stores", "name at least one store, or give `others` for all");
        }
        let mut names: Vec<&StoreId> = self.stores.iter().map(|store| &store.store).collect();
        names.sort();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return refuse("stores", "name each store once");
        }
        if self.look_every.is_zero() {
            return refuse("look_every", "give the time between two looks, such as 15 s");
        }
        let forget_after = self.others.as_ref().and_then(|others| others.forget_after);
        if forget_after.is_some_and(|time| time < Duration::from_secs(10)) {
            return refuse(
                "forget_after",
                "at least 10 s, better hours: a run that is started again must find its budget",
            );
        }
        let example = StoreId::new("store").ok();
        let example = self.others.as_ref().zip(example).map(|(others, name)| others.of(name));
        for store in self.stores.iter().chain(&example) {
            store.features(self.read_only).validate()?;
            if store.audit_every.is_some_and(|every| every.is_zero()) {
                return refuse("audit_every", "give the time between two audits, or none for no audits");
            }
            if store.end_when_unused.is_some_and(|time| time < Duration::from_secs(10)) {
                return refuse(
                    "end_when_unused",
                    "at least 10 s, better minutes: a process that restarts must find its samples",
                );
            }
            if store.end_when_unused.is_some_and(|time| time < 3 * self.look_every) {
                return refuse(
                    "end_when_unused",
                    "at least three times look_every: less is seen by too few looks",
                );
            }
            if !(0.0..=1.0).contains(&store.warn_free) {
                return refuse("warn_free", "a part of the whole: between 0 and 1");
            }
        }
        if let Some(etcd) = &self.etcd {
            if !(0.0..=1.0).contains(&etcd.warn_full) || etcd.quota == 0 {
                return refuse("etcd", "warn_full is between 0 and 1, and the quota is not zero");
            }
            if etcd.compact_every < Duration::from_secs(10) {
                return refuse(
                    "etcd.compact_every",
                    "at least 10 s, better minutes: a watch that lost its node must find the changes since",
                );
            }
        }
        if let Some(http) = &self.http {
            if http.within.is_zero() || http.most == 0 {
                return refuse("http", "within and most must not be zero");
            }
            http.tokens.iter().try_for_each(TokenEntry::validate)?;
            if !http.listen.ip().is_loopback() && (http.tokens.is_empty() || http.tls.is_none()) {
                return refuse(
                    "http.listen",
                    "other machines can reach this address: give tokens and TLS, or listen on loopback",
                );
            }
        }
        Ok(())
    }
}

impl StoreOptions {
    /// The defaults, for this store.
    pub fn new(store: StoreId) -> Self {
        Self {
            store,
            sweep_every: default_sweep_every(),
            sweep_limit: default_sweep_limit(),
            frees_per_second: None,
            adopt_prefixes: Vec::new(),
            loss_grace: None,
            audit_every: None,
            end_when_unused: None,
            warn_free: default_warn_free(),
        }
    }

    /// How the steward opens the store.
    pub(crate) fn features(&self, read_only: bool) -> FeatureConfig {
        let usual = FeatureConfig::new(self.store.clone());
        FeatureConfig {
            steward: true,
            loss_grace: self.loss_grace.unwrap_or(usual.loss_grace),
            sweep_every: Some(self.sweep_every).filter(|_| !read_only),
            sweep_limit: self.sweep_limit,
            frees_per_second: self.frees_per_second,
            adopt_prefixes: self.adopt_prefixes.clone(),
            // It neither puts nor gets.
            pool_bytes: 1 << 20,
            stage_bytes: 32 << 20,
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new([StoreId::new("eagle").expect("a name")])
    }

    #[test]
    fn settings_read_from_json_with_defaults() {
        let read: Options = serde_json::from_str(r#"{"stores":[{"store":"eagle"}]}"#).expect("settings");
        assert_eq!(read, options());
        read.validate().expect("lawful");
        assert!(serde_json::from_str::<Options>(r#"{"stores":[],"readonly":true}"#).is_err());
    }

    #[test]
    fn etcd_is_compacted_unless_the_settings_say_otherwise() {
        let usual: EtcdOptions = serde_json::from_str(r#"{"reach":{"endpoints":["http://a:1"]}}"#).expect("settings");
        assert_eq!(
            (usual.compact, usual.compact_every),
            (Compact::Auto, Duration::from_secs(300))
        );
        assert_eq!(usual.never_compacts(false), None);
        assert!(usual.never_compacts(true).is_some(), "it would change something");
        for (text, compact) in [("auto", Compact::Auto), ("on", Compact::On), ("off", Compact::Off)] {
            let read: Compact = text.parse().expect("one of three");
            assert_eq!(read, compact);
            assert_eq!(serde_json::to_string(&compact).expect("JSON"), format!("\"{text}\""));
            let options = EtcdOptions {
                compact,
                ..usual.clone()
            };
            assert_eq!(
                options.never_compacts(false).is_some(),
                compact == Compact::Off,
                "{text}"
            );
        }
        "true".parse::<Compact>().expect_err("none of three");
    }

    #[test]
    fn unusable_settings_are_refused_by_name() {
        let refused = |change: fn(&mut Options)| {
            let mut options = options();
            change(&mut options);
            let error = options.validate().expect_err("refused");
            error.fact("setting").map(str::to_owned).unwrap_or_default()
        };
        let http = |options: &mut Options| {
            let read = serde_json::from_str(r#"{"listen":"0.0.0.0:9464"}"#);
            options.http = Some(read.expect("settings"));
        };
        assert_eq!(refused(|options| options.stores.clear()), "stores");
        assert_eq!(
            refused(|options| {
                options.others = Some(OtherStores {
                    audit_every: Some(Duration::ZERO),
                    ..OtherStores::default()
                });
            }),
            "audit_every"
        );
        assert_eq!(
            refused(|options| options.stores.extend(options.stores.clone())),
            "stores"
        );
        assert_eq!(refused(http), "http.listen");
        assert_eq!(
            refused(|options| options.stores[0].end_when_unused = Some(Duration::from_secs(1))),
            "end_when_unused"
        );
        assert_eq!(
            refused(|options| options.stores[0].end_when_unused = Some(Duration::from_secs(44))),
            "end_when_unused",
            "three looks take 45 s"
        );
        assert_eq!(refused(|options| options.stores[0].warn_free = 7.0), "warn_free");
        let often = |options: &mut Options| {
            options.etcd = Some(EtcdOptions {
                compact_every: Duration::from_secs(9),
                ..EtcdOptions::new(EtcdConfig::new(["http://a:1"]))
            });
        };
        assert_eq!(refused(often), "etcd.compact_every");
        let all: Options = serde_json::from_str(r#"{"others":{"audit_every":"1h"}}"#).expect("settings");
        all.validate().expect("all stores need no names");
        let mut local = options();
        local.http = Some(serde_json::from_str("{}").expect("settings"));
        local.validate().expect("loopback needs neither");
    }
}
