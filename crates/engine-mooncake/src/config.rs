//! How to reach a Mooncake Store cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, Result};

/// Every setting of a [`crate::MooncakeEngine`]. All have a default. The defaults reach a cluster on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MooncakeConfig {
    /// The master: `host:port`, or `etcd://host:port[;host:port]` when masters are highly available.
    /// Default: `127.0.0.1:50051`.
    pub master: String,
    /// The masters' admin addresses, `http://host:port` each; probe and usage need them. Name all masters of a highly
    /// available cluster: only the leader answers. Default: `http://127.0.0.1:9003`.
    pub admin: Vec<String>,
    /// Where transfer engines find each other: `P2PHANDSHAKE` (no server), or the address of a metadata server. All
    /// members of a cluster use the same value. Default: `P2PHANDSHAKE`, because memory can neither be registered nor
    /// unregistered while a metadata server is out of reach.
    pub metadata: String,
    /// The name or address under which other hosts reach this one. Default: `127.0.0.1`.
    pub local_hostname: String,
    /// How bytes move: `tcp`, `rdma`, or another protocol that the wheel was built with. Default: `tcp`.
    pub protocol: String,
    /// Network devices for RDMA, separated by commas. Default: none, the engine chooses.
    pub devices: String,
    /// DRAM that this process contributes to the cluster. The objects in it are lost when the process ends, pinned or
    /// not. So it is for objects that may be lost (KV pages), and for processes that do nothing else. Default: 0, a
    /// pure client.
    pub segment_bytes: u64,
    /// The client's own staging buffer; Tensorhold's transfers do not pass through it. Default: 16 MiB.
    pub buffer_bytes: u64,
    /// Where this process keeps SSD copies of the objects in its segment. Default: none.
    pub ssd_path: Option<PathBuf>,
    /// The tenant that keys belong to. A probe of this release of the engine sees the default tenant only. Default:
    /// `default`.
    pub tenant: String,
    /// Port of the client's own HTTP metrics, if it should serve them. Default: none.
    pub client_http_port: Option<u16>,
    /// Environment variables that the engine reads when it is loaded (`MC_…`, `GLOG_…`, `MOONCAKE_…`). They are set for
    /// the whole process, before the first engine in it is made. Default: none; `MC_LOG_LEVEL` is set to `ERROR` if it is
    /// not set anywhere.
    pub environment: BTreeMap<String, String>,
    /// Also open the engine with a release of Mooncake that was never tested with this release of Tensorhold. The
    /// environment variable `TENSORHOLD_UNTESTED_MOONCAKE=1` does the same. Default: no.
    pub untested_release: bool,
    /// Whether a thread that waits for a transfer does so at idle priority, behind the threads that move the bytes.
    /// Default: `auto`.
    pub idle_waits: IdleWaits,
    /// The most calls in flight at once, including calls that hang. Default: 128.
    pub max_calls: usize,
    /// How long connecting may take. Default: 30 s.
    #[serde(with = "tensorhold_core::duration")]
    pub connect_within: Duration,
    /// How long the drop of the engine value waits for calls in flight. Default: 10 s.
    #[serde(with = "tensorhold_core::duration")]
    pub close_within: Duration,
}

/// Whether threads that wait for a transfer do so at idle priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleWaits {
    /// If the process may return its threads to normal priority: the kernel wants `CAP_SYS_NICE`, or a limit
    /// (`RLIMIT_NICE`) that allows it. Otherwise as `Off`.
    #[default]
    Auto,
    /// Never: for a program that manages the scheduling of its threads itself, or to compare.
    Off,
}

impl Default for MooncakeConfig {
    fn default() -> Self {
        Self {
            master: "127.0.0.1:50051".to_owned(),
            admin: vec!["http://127.0.0.1:9003".to_owned()],
            metadata: Self::NO_METADATA_SERVER.to_owned(),
            local_hostname: "127.0.0.1".to_owned(),
            protocol: "tcp".to_owned(),
            devices: String::new(),
            segment_bytes: 0,
            buffer_bytes: 16 << 20,
            ssd_path: None,
            tenant: Self::DEFAULT_TENANT.to_owned(),
            client_http_port: None,
            environment: BTreeMap::new(),
            untested_release: false,
            idle_waits: IdleWaits::Auto,
            max_calls: 128,
            connect_within: Duration::from_secs(30),
            close_within: Duration::from_secs(10),
        }
    }
}

impl MooncakeConfig {
    /// The metadata setting of a cluster without a metadata server.
    pub const NO_METADATA_SERVER: &'static str = "P2PHANDSHAKE";
    /// The tenant of keys that name none.
    pub const DEFAULT_TENANT: &'static str = "default";

    /// Checks the settings as far as possible without the cluster.
    pub fn validate(&self) -> Result<()> {
        let refuse =
            |setting: &'static str, why: &str| Err(Error::invalid("mooncake.config", why).with("setting", setting));
        if self.master.is_empty() {
            return refuse("master", "name the master: host:port, or etcd://host:port");
        }
        if self.metadata.is_empty() {
            return refuse("metadata", "name the metadata server, or P2PHANDSHAKE for none");
        }
        if self.protocol.is_empty() {
            return refuse("protocol", "name the protocol, such as tcp or rdma");
        }
        if let Some(address) = self.admin.iter().find(|address| !address.starts_with("http://")) {
            return refuse(
                "admin",
                &format!("an admin address reads http://host:port, not {address:?}"),
            );
        }
        if self.max_calls == 0 {
            return refuse("max_calls", "at least one call must be allowed at a time");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_read_from_json_with_defaults_and_without_surprises() {
        let config: MooncakeConfig = serde_json::from_str(r#"{"master": "m:1", "protocol": "rdma"}"#).expect("reads");
        assert_eq!(
            (config.master.as_str(), config.protocol.as_str(), config.max_calls),
            ("m:1", "rdma", 128)
        );
        assert!(
            serde_json::from_str::<MooncakeConfig>(r#"{"protocl": "tcp"}"#).is_err(),
            "a slip is not a default"
        );
        config.validate().expect("lawful");
        assert_eq!(config.idle_waits, IdleWaits::Auto);
        let off: MooncakeConfig = serde_json::from_str(r#"{"idle_waits": "off"}"#).expect("reads");
        assert_eq!(off.idle_waits, IdleWaits::Off);
    }

    #[test]
    fn the_table_of_settings_has_these_defaults() {
        let config = serde_json::to_value(MooncakeConfig::default()).expect("JSON");
        let elsewhere = [
            ("master", "master"),
            // That of the table follows from the master.
            ("admin", ""),
            ("metadata", "metadata"),
            ("local_hostname", "local_hostname"),
            ("protocol", "protocol"),
            ("environment", "environment"),
            // A process that uses a store lends no memory, and the time to connect is that of opening.
            ("segment_bytes", ""),
            ("ssd_path", ""),
            ("connect_within", ""),
        ];
        let different = tensorhold_settings::differences("engine", &config, &elsewhere);
        assert!(different.is_empty(), "{different:?}");
    }

    #[test]
    fn unusable_settings_are_refused_by_name() {
        let bad = MooncakeConfig {
            admin: vec!["127.0.0.1:9003".to_owned()],
            ..MooncakeConfig::default()
        };
        assert_eq!(bad.validate().expect_err("refused").fact("setting"), Some("admin"));
        let bad = MooncakeConfig {
            max_calls: 0,
            ..MooncakeConfig::default()
        };
        assert_eq!(bad.validate().expect_err("refused").fact("setting"), Some("max_calls"));
    }
}
