//! A running cluster, as a test sees it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::builder::ClusterBuilder;
use crate::etcd::EtcdCluster;
use crate::http;
use crate::node::Node;
use crate::site::{self, Site};
use crate::wait::{EVERY, poll};

/// The addresses and variables that a client of a cluster needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// The master's address for clients: `127.0.0.1:20001`, or `etcd://…` with two masters.
    pub master: String,
    /// The metadata server for the transfer engine: an address, or `P2PHANDSHAKE`.
    pub metadata: String,
    /// The admin address of each master: `http://127.0.0.1:20002`.
    pub admin: Vec<String>,
    /// The client address of each etcd node: `http://127.0.0.1:20003`.
    pub etcd: Vec<String>,
    /// Variables that a client must have in its environment.
    pub client_env: Vec<(String, String)>,
}

/// A running cluster. Dropping it kills every process; if the test panics, it first prints the end of each log.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) masters: Vec<Node>,
    pub(crate) holders: Vec<Node>,
    pub(crate) etcd: Option<EtcdCluster>,
    pub(crate) endpoints: Endpoints,
    pub(crate) started: bool,
    site: Arc<Site>,
}

impl Cluster {
    /// Describes a cluster; `.start()` starts it.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    pub(crate) fn empty(site: &Arc<Site>) -> Self {
        let client_env = vec![("MC_TCP_BIND_ADDRESS".to_owned(), "127.0.0.1".to_owned())];
        Self {
            masters: Vec::new(),
            holders: Vec::new(),
            etcd: None,
            endpoints: Endpoints {
                client_env,
                ..Endpoints::default()
            },
            started: false,
            site: site.clone(),
        }
    }

    /// The addresses and variables that a client needs.
    pub fn endpoints(&self) -> Endpoints {
        self.endpoints.clone()
    }

    /// One master; there are two with high availability, otherwise one.
    ///
    /// # Panics
    /// When there are not that many.
    pub fn master(&self, index: usize) -> &Node {
        &self.masters[index]
    }

    /// One holder.
    ///
    /// # Panics
    /// When there are not that many.
    pub fn holder(&self, index: usize) -> &Node {
        &self.holders[index]
    }

    /// One etcd node.
    ///
    /// # Panics
    /// When there are not that many.
    pub fn etcd(&self, index: usize) -> &Node {
        let nodes = self.etcd.as_ref().map_or(&[][..], EtcdCluster::nodes);
        &nodes[index]
    }

    /// The etcd cluster, if there is one: to restore it from a snapshot, or to replace it.
    pub fn etcd_cluster(&self) -> Option<&EtcdCluster> {
        self.etcd.as_ref()
    }

    /// The index of the master that reports itself as the serving leader.
    ///
    /// # Errors
    /// When none does.
    pub fn leader(&self) -> Result<usize> {
        let answers = |url: &String, path: &str, part: &str| {
            http::get(&format!("{url}{path}")).is_ok_and(|body| body.contains(part))
        };
        let leads =
            |url: &String| answers(url, "/role", "leader") && answers(url, "/health", r#""service_ready":true"#);
        self.endpoints
            .admin
            .iter()
            .position(leads)
            .context("no master says that it leads")
    }

    /// Waits for a leading master, for instance after the old one was killed (that takes about 10 s).
    ///
    /// # Errors
    /// When there is none in time.
    pub fn wait_for_leader(&self, within: Duration) -> Result<usize> {
        poll(within, EVERY, || self.leader().ok()).with_context(|| format!("no leading master within {within:?}"))
    }

    /// The index of the etcd node that leads now.
    ///
    /// # Errors
    /// When none does, or the cluster has no etcd.
    pub fn etcd_leader(&self) -> Result<usize> {
        self.etcd
            .as_ref()
            .context("this cluster has no etcd: add .etcd_nodes(1)")?
            .leader()
    }

    /// The folder with logs and data. It is removed with the cluster.
    pub fn dir(&self) -> &Path {
        self.site.dir()
    }

    /// The end of each process's log.
    pub fn logs(&self) -> String {
        self.nodes().map(Node::log_tail).collect()
    }

    /// Every process of the cluster: masters, holders, etcd.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> + Clone {
        let etcd = self.etcd.as_ref().map_or(&[][..], EtcdCluster::nodes);
        self.masters.iter().chain(&self.holders).chain(etcd)
    }

    /// Releases the processes: they outlive this value.
    pub(crate) fn let_go(mut self) -> Result<Endpoints> {
        let mut nodes = std::mem::take(&mut self.masters);
        nodes.append(&mut self.holders);
        if let Some(etcd) = &mut self.etcd {
            nodes.append(&mut etcd.take_nodes());
        }
        nodes.into_iter().try_for_each(Node::let_go)?;
        Ok(self.endpoints.clone())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // etcd prints its logs and ends its nodes itself, right after.
        site::close(self.masters.iter().chain(&self.holders), self.started);
    }
}
