//! The description of a cluster, and how its processes are started.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;
use crate::detached::DetachedCluster;
use crate::etcd::EtcdCluster;
use crate::holder::HolderPlan;
use crate::master::{CLUSTER_ID, MasterPlan};
use crate::node::{Node, READY_WITHIN};
use crate::ports::with_other_ports_if_taken;
use crate::site::Site;

/// Describes a cluster to start. Made by [`Cluster::builder`].
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    holders: usize,
    segment_mib: u64,
    lease_ttl: Duration,
    ssd: bool,
    offload_on_evict: bool,
    ha: bool,
    etcd_nodes: usize,
    master_flags: Vec<String>,
    holder_env: Vec<(String, String)>,
    p2p_metadata: bool,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            holders: 1,
            segment_mib: 512,
            lease_ttl: Duration::from_secs(5),
            ssd: false,
            offload_on_evict: false,
            ha: false,
            etcd_nodes: 0,
            master_flags: Vec::new(),
            holder_env: Vec::new(),
            p2p_metadata: false,
        }
    }
}

impl ClusterBuilder {
    /// How many holders lend memory. Default: 1.
    #[must_use]
    pub fn holders(mut self, n: usize) -> Self {
        self.holders = n;
        self
    }

    /// How much memory each holder lends. Default: 512.
    #[must_use]
    pub fn segment_mib(mut self, mib: u64) -> Self {
        self.segment_mib = mib;
        self
    }

    /// How long a read keeps an object from being removed or evicted. Default: 5 s.
    #[must_use]
    pub fn lease_ttl(mut self, d: Duration) -> Self {
        self.lease_ttl = d;
        self
    }

    /// Adds the SSD tier, tuned for tests: heartbeat every second, promotion at the first hit, small buckets, one
    /// folder per holder. Default: off.
    #[must_use]
    pub fn ssd(mut self, on: bool) -> Self {
        self.ssd = on;
        self
    }

    /// With the SSD tier: write an object to the SSD when it is evicted, not when it is put. Default: off.
    #[must_use]
    pub fn offload_on_evict(mut self, on: bool) -> Self {
        self.offload_on_evict = on;
        self
    }

    /// Two masters, one of them the leader, with their log in etcd (which is started too). Default: off.
    #[must_use]
    pub fn ha(mut self, on: bool) -> Self {
        self.ha = on;
        self
    }

    /// How many etcd nodes: 0, 1 or 3. Default: 0, with [`ClusterBuilder::ha`] 1.
    #[must_use]
    pub fn etcd_nodes(mut self, n: usize) -> Self {
        self.etcd_nodes = n;
        self
    }

    /// Any other flag for the masters, such as `--client_ttl=3`. Default: none.
    #[must_use]
    pub fn master_flag(mut self, flag: impl Into<String>) -> Self {
        self.master_flags.push(flag.into());
        self
    }

    /// A variable in the holders' environment. Default: none.
    #[must_use]
    pub fn holder_env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.holder_env.push((key.into(), value.into()));
        self
    }

    /// Transfer engines find each other by handshake, not through the master's metadata server. Default: off, with
    /// [`ClusterBuilder::ha`] always on (a metadata server would die with its master).
    #[must_use]
    pub fn p2p_metadata(mut self, on: bool) -> Self {
        self.p2p_metadata = on;
        self
    }

    /// Starts the cluster and waits until every process is ready.
    ///
    /// # Errors
    /// When a process does not become ready; the logs have been printed.
    pub fn start(self) -> Result<Cluster> {
        with_other_ports_if_taken(|| self.start_at(Site::temporary()?))
    }

    /// Starts the cluster in the folder `dir` so that it outlives this process, until [`DetachedCluster::down`].
    ///
    /// # Errors
    /// When a cluster is already up in that folder, or a process does not become ready.
    pub fn start_detached(self, dir: &Path) -> Result<DetachedCluster> {
        DetachedCluster::start(&self, dir)
    }

    pub(crate) fn start_at(&self, site: Site) -> Result<Cluster> {
        if self.offload_on_evict && !self.ssd {
            bail!("offload_on_evict has no meaning without the SSD tier: add .ssd(true)");
        }
        let site = Arc::new(site);
        let mut cluster = Cluster::empty(&site);
        let etcd_nodes = if self.ha {
            self.etcd_nodes.max(1)
        } else {
            self.etcd_nodes
        };
        if etcd_nodes > 0 {
            let etcd = EtcdCluster::start_at(&site, etcd_nodes)?;
            cluster.endpoints.etcd = etcd.endpoints();
            cluster.etcd = Some(etcd);
        }
        self.start_masters(&site, &mut cluster)?;
        self.start_holders(&site, &mut cluster)?;
        cluster.started = true;
        Ok(cluster)
    }

    fn start_masters(&self, site: &Site, cluster: &mut Cluster) -> Result<()> {
        let etcd_addresses = || {
            cluster
                .endpoints
                .etcd
                .iter()
                .map(|url| url.replace("http://", ""))
                .collect::<Vec<_>>()
        };
        let plan = MasterPlan {
            lease_ttl: self.lease_ttl,
            ssd: self.ssd,
            offload_on_evict: self.offload_on_evict,
            etcd: self.ha.then(etcd_addresses),
            metadata_server: !self.ha && !self.p2p_metadata,
            extra: self.master_flags.clone(),
        };
        for index in 0..if self.ha { 2 } else { 1 } {
            let master = plan.launch(site, index)?;
            cluster.masters.push(master.node);
            cluster.endpoints.admin.push(master.admin);
            cluster.endpoints.master = master.rpc;
            cluster.endpoints.metadata = master.metadata.unwrap_or_else(|| "P2PHANDSHAKE".to_owned());
        }
        if let Some(etcd) = &plan.etcd {
            cluster.endpoints.master = format!("etcd://{}", etcd.join(";"));
            cluster
                .endpoints
                .client_env
                .push(("MC_STORE_CLUSTER_ID".to_owned(), CLUSTER_ID.to_owned()));
        }
        cluster.masters.iter().try_for_each(Node::wait_ready)?;
        cluster
            .wait_for_leader(READY_WITHIN)
            .map(drop)
            .context("the masters run, but none leads")
    }

    fn start_holders(&self, site: &Site, cluster: &mut Cluster) -> Result<()> {
        let plan = HolderPlan {
            master: cluster.endpoints.master.clone(),
            metadata: cluster.endpoints.metadata.clone(),
            segment_bytes: self.segment_mib << 20,
            ssd: self.ssd,
            env: cluster
                .endpoints
                .client_env
                .iter()
                .chain(&self.holder_env)
                .cloned()
                .collect(),
        };
        for index in 0..self.holders {
            cluster.holders.push(plan.launch(site, index)?);
        }
        cluster.holders.iter().try_for_each(Node::wait_ready)
    }
}
