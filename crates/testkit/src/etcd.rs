//! etcd, one node or three, with the flags that a production cluster would have: compaction on, unless a test asks for
//! none, and a quota set.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::disaster::Rebuilt;
use crate::http;
use crate::install::Install;
use crate::node::{Node, Ready};
use crate::ports::with_other_ports_if_taken;
use crate::site::{self, Site};
use crate::wait::{EVERY, poll};

const QUOTA_BYTES: u64 = 2 << 30;
/// An etcd under load answers late.
const METRICS_WITHIN: Duration = Duration::from_secs(10);
/// The last thousand revisions are kept; etcd compacts every five minutes, when most tests are over.
const BY_REVISIONS: [&str; 2] = ["--auto-compaction-mode=revision", "--auto-compaction-retention=1000"];

/// An etcd cluster. Dropping it kills every node.
#[derive(Debug)]
pub struct EtcdCluster {
    nodes: Vec<Node>,
    members: Vec<Member>,
    started: bool,
    site: Arc<Site>,
}

#[derive(Debug)]
struct Member {
    name: String,
    client_url: String,
    peer_url: String,
    ports: [u16; 2],
}

impl EtcdCluster {
    /// Starts `nodes` nodes (1 or 3) and waits until each serves.
    ///
    /// # Errors
    /// When a node does not become ready; its log has been printed.
    pub fn start(nodes: usize) -> Result<Self> {
        Self::start_with_quota(nodes, QUOTA_BYTES)
    }

    /// As [`EtcdCluster::start`], with another quota: a small one is soon used up.
    ///
    /// # Errors
    /// As [`EtcdCluster::start`].
    pub fn start_with_quota(nodes: usize, quota_bytes: u64) -> Result<Self> {
        let compaction = BY_REVISIONS.map(str::to_owned);
        with_other_ports_if_taken(|| Self::start_in(&Arc::new(Site::temporary()?), nodes, quota_bytes, &compaction))
    }

    /// As [`EtcdCluster::start`], with history compacted by time: etcd keeps that of the last `seconds`.
    ///
    /// # Errors
    /// As [`EtcdCluster::start`].
    pub fn start_compacted(nodes: usize, seconds: u32) -> Result<Self> {
        let compaction = [
            "--auto-compaction-mode=periodic".to_owned(),
            format!("--auto-compaction-retention={seconds}s"),
        ];
        with_other_ports_if_taken(|| Self::start_in(&Arc::new(Site::temporary()?), nodes, QUOTA_BYTES, &compaction))
    }

    /// As [`EtcdCluster::start`], with history that is kept for ever, as etcd does unless it is told otherwise.
    ///
    /// # Errors
    /// As [`EtcdCluster::start`].
    pub fn start_uncompacted(nodes: usize) -> Result<Self> {
        with_other_ports_if_taken(|| Self::start_in(&Arc::new(Site::temporary()?), nodes, QUOTA_BYTES, &[]))
    }

    pub(crate) fn start_at(site: &Arc<Site>, nodes: usize) -> Result<Self> {
        Self::start_in(site, nodes, QUOTA_BYTES, &BY_REVISIONS.map(str::to_owned))
    }

    fn start_in(site: &Arc<Site>, nodes: usize, quota_bytes: u64, compaction: &[String]) -> Result<Self> {
        if !matches!(nodes, 1 | 3) {
            bail!("an etcd cluster has 1 or 3 nodes here, not {nodes}");
        }
        let program = site.install.etcd()?;
        let members = (0..nodes)
            .map(|index| Member::new(site, index))
            .collect::<Result<Vec<_>>>()?;
        let everyone = everyone(&members);
        let mut cluster = Self {
            nodes: Vec::new(),
            members,
            started: false,
            site: site.clone(),
        };
        for member in &cluster.members {
            let data = site.folder(&member.data())?;
            let spec = site.spec(&member.name, &program).args(compaction).args([
                format!("--name={}", member.name),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={}", member.client_url),
                format!("--advertise-client-urls={}", member.client_url),
                format!("--listen-peer-urls={}", member.peer_url),
                format!("--initial-advertise-peer-urls={}", member.peer_url),
                format!("--initial-cluster={everyone}"),
                format!("--quota-backend-bytes={quota_bytes}"),
            ]);
            let url = format!("{}/health", member.client_url);
            cluster.nodes.push(site.launch(
                spec,
                Ready::Answer {
                    url,
                    any_of: &[r#""health":"true""#],
                    ports: member.ports.to_vec(),
                },
            )?);
        }
        cluster.nodes.iter().try_for_each(Node::wait_ready)?;
        cluster.started = true;
        Ok(cluster)
    }

    /// The client addresses, such as `http://127.0.0.1:20001`.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client_url.clone()).collect()
    }

    /// One node.
    ///
    /// # Panics
    /// When there are not that many.
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The index of the node that reports itself as the leader.
    ///
    /// # Errors
    /// When none does.
    pub fn leader(&self) -> Result<usize> {
        let leads = |member: &Member| {
            member
                .status()
                .is_ok_and(|status| status.leader == status.header.member_id)
        };
        self.members
            .iter()
            .position(leads)
            .context("no etcd node says that it leads: is there a majority?")
    }

    /// Waits for a leader, for instance after the old one was killed.
    ///
    /// # Errors
    /// When there is none in time.
    pub fn wait_for_leader(&self, within: Duration) -> Result<usize> {
        poll(within, EVERY, || self.leader().ok()).with_context(|| format!("no etcd leader within {within:?}"))
    }

    /// The end of each node's log.
    pub fn logs(&self) -> String {
        self.nodes.iter().map(Node::log_tail).collect()
    }

    /// The folder with logs and data.
    pub fn dir(&self) -> &std::path::Path {
        self.site.dir()
    }

    /// The page of the first node's metrics, in Prometheus's text format.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<String> {
        let member = self.members.first().context("a cluster has a node")?;
        http::get_within(&format!("{}/metrics", member.client_url), METRICS_WITHIN)
    }

    /// The revision of the first node's data.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn revision(&self) -> Result<u64> {
        let member = self.members.first().context("a cluster has a node")?;
        let revision = member.status()?.header.revision;
        revision
            .parse()
            .with_context(|| format!("etcd gave the revision {revision:?}"))
    }

    pub(crate) fn install(&self) -> &Install {
        &self.site.install
    }

    pub(crate) fn rebuilt(&self) -> impl Iterator<Item = Rebuilt<'_>> {
        self.members.iter().map(|member| Rebuilt {
            name: &member.name,
            peer_url: &member.peer_url,
            everyone: everyone(&self.members),
            data: self.dir().join(member.data()),
        })
    }

    pub(crate) fn take_nodes(&mut self) -> Vec<Node> {
        std::mem::take(&mut self.nodes)
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        site::close(self.nodes.iter(), self.started);
    }
}

/// The part we read of the answer of `/v3/maintenance/status`; etcd writes 64-bit numbers as strings.
#[derive(Deserialize)]
struct Status {
    header: Header,
    #[serde(default)] // left out while there is none
    leader: String,
}

#[derive(Deserialize)]
struct Header {
    member_id: String,
    #[serde(default)] // left out while it is zero
    revision: String,
}

/// All members, in the form of etcd's flags.
fn everyone(members: &[Member]) -> String {
    let named = members.iter().map(|m| format!("{}={}", m.name, m.peer_url));
    named.collect::<Vec<_>>().join(",")
}

impl Member {
    fn new(site: &Site, index: usize) -> Result<Self> {
        let ports = [site.port()?, site.port()?];
        let [client_url, peer_url] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        Ok(Self {
            name: format!("etcd-{index}"),
            client_url,
            peer_url,
            ports,
        })
    }

    /// The name of its data folder.
    fn data(&self) -> String {
        format!("{}-data", self.name)
    }

    fn status(&self) -> Result<Status> {
        let body = http::post(&format!("{}/v3/maintenance/status", self.client_url), "{}")?;
        serde_json::from_str(&body).with_context(|| format!("{} did not answer with its status: {body}", self.name))
    }
}
