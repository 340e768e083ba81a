//! The command line of a `mooncake_master`.

use std::time::Duration;

use anyhow::Result;

use crate::node::{Node, Ready};
use crate::site::Site;

/// The name under which masters with high availability and their clients find each other in etcd.
pub(crate) const CLUSTER_ID: &str = "tensorhold";

/// The settings that all masters of a cluster share.
#[derive(Debug, Clone)]
pub(crate) struct MasterPlan {
    pub(crate) lease_ttl: Duration,
    pub(crate) ssd: bool,
    pub(crate) offload_on_evict: bool,
    /// `host:port` of each etcd node; with it the master takes part in an election.
    pub(crate) etcd: Option<Vec<String>>,
    /// Whether it also runs the metadata server for the transfer engines.
    pub(crate) metadata_server: bool,
    pub(crate) extra: Vec<String>,
}

/// A launched master, and where it listens.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) node: Node,
    pub(crate) rpc: String,
    pub(crate) admin: String,
    pub(crate) metadata: Option<String>,
}

impl MasterPlan {
    /// Launches the master without waiting for it.
    pub(crate) fn launch(&self, site: &Site, index: usize) -> Result<Master> {
        let (rpc, admin) = (site.port()?, site.port()?);
        let mut flags = vec![
            "--rpc_address=127.0.0.1".to_owned(),
            format!("--rpc_port={rpc}"),
            "--metrics_host=127.0.0.1".to_owned(),
            format!("--metrics_port={admin}"),
            format!("--default_kv_lease_ttl={}ms", self.lease_ttl.as_millis()),
            "--logtostderr".to_owned(),
        ];
        let mut ports = vec![admin];
        let mut metadata = None;
        if self.metadata_server {
            let port = site.port()?;
            flags.push("--enable_http_metadata_server=true".to_owned());
            flags.push("--http_metadata_server_host=127.0.0.1".to_owned());
            flags.push(format!("--http_metadata_server_port={port}"));
            ports.push(port);
            metadata = Some(format!("http://127.0.0.1:{port}/metadata"));
        }
        if self.ssd {
            flags.extend(["--enable_offload=true", "--promotion_on_hit=true"].map(str::to_owned));
            flags.extend(["--promotion_admission_threshold=1", "--promotion_max_per_heartbeat=16"].map(str::to_owned));
            flags.push(format!("--offload_on_evict={}", self.offload_on_evict));
        }
        if let Some(etcd) = &self.etcd {
            flags.extend(["--enable_ha=true", "--enable_oplog=true"].map(str::to_owned));
            flags.push(format!("--etcd_endpoints={}", etcd.join(";")));
            flags.push(format!("--cluster_id={CLUSTER_ID}"));
        } else {
            ports.push(rpc); // of several masters only the leader listens there
        }
        flags.extend(self.extra.iter().cloned());

        let admin = format!("http://127.0.0.1:{admin}");
        let spec = site
            .spec(&format!("master-{index}"), site.install.mooncake_master()?)
            .args(flags);
        let url = format!("{admin}/health");
        let node = site.launch(
            spec,
            Ready::Answer {
                ports,
                url,
                any_of: self.ready_answers(),
            },
        )?;
        Ok(Master {
            node,
            rpc: format!("127.0.0.1:{rpc}"),
            admin,
            metadata,
        })
    }

    /// A single master is ready when it serves; of several, all but one are ready when they stand by.
    fn ready_answers(&self) -> &'static [&'static str] {
        if self.etcd.is_some() {
            &[r#""service_ready":true"#, r#""ha_state":"standby""#]
        } else {
            &[r#""service_ready":true"#]
        }
    }
}
