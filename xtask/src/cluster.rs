//! `cargo xtask cluster …`: a real cluster on this machine.
//!
//! | command | the cluster lives | for |
//! |---|---|---|
//! | `up`, `status`, `env`, `down` | until it is taken down, recorded in a folder (`--state-dir`) | people at a shell |
//! | `hold` | as long as the command, which ends with its standard input | tests in other languages |
//!
//! A program that starts a cluster with `up` and is killed leaves the cluster behind. With `hold` it cannot: its end of
//! the pipe closes with it, however it ends; if `hold` itself is killed, the kernel ends the cluster's processes. Any
//! number of clusters may be held, or be up in different folders, at the same time.

mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tensorhold_testkit::{Cluster, ClusterBuilder, DetachedCluster};

use report::{Report, Row, State};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a cluster and leave it running
    Up {
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        common: Common,
    },
    /// Start a cluster, print one line of JSON about it, and end it when standard input has a line or closes
    Hold {
        #[command(flatten)]
        shape: Shape,
    },
    /// Kill the cluster's processes and forget it
    Down {
        #[command(flatten)]
        common: Common,
    },
    /// Show what runs, and where
    Status {
        #[command(flatten)]
        common: Common,
    },
    /// Print the variables by which clients find the cluster, for a shell: eval "$(cargo xtask cluster env)"
    Env {
        #[command(flatten)]
        common: Common,
    },
}

/// Which cluster.
#[derive(Args)]
pub(crate) struct Shape {
    /// How many processes lend memory
    #[arg(long, default_value_t = 1)]
    holders: usize,
    /// How much memory each of them lends
    #[arg(long, default_value_t = 512)]
    segment_mib: u64,
    /// Add the SSD tier
    #[arg(long)]
    ssd: bool,
    /// Two masters, of which one leads (starts etcd too)
    #[arg(long)]
    ha: bool,
    /// How many etcd nodes: 0, 1 or 3
    #[arg(long, default_value_t = 0, value_name = "N")]
    etcd: usize,
    /// How long a read protects an object, such as 5s or 500ms
    #[arg(long, default_value = "5s", value_parser = duration)]
    lease_ttl: Duration,
    /// Any other flag of mooncake_master, such as --master-flag=--client_ttl=3; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    master_flag: Vec<String>,
}

impl Shape {
    fn builder(&self) -> ClusterBuilder {
        let plain = Cluster::builder()
            .p2p_metadata(true)
            .holders(self.holders)
            .segment_mib(self.segment_mib)
            .ssd(self.ssd)
            .ha(self.ha)
            .etcd_nodes(self.etcd)
            .lease_ttl(self.lease_ttl);
        self.master_flag.iter().fold(plain, ClusterBuilder::master_flag)
    }
}

#[derive(Args)]
pub(crate) struct Common {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Where the cluster's state, logs and data are; one folder, one cluster [default: target/tensorhold-cluster]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Common {
    fn dir(&self) -> Result<PathBuf> {
        let dir = self
            .state_dir
            .clone()
            .unwrap_or_else(|| crate::target_dir().join("tensorhold-cluster"));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
        dir.canonicalize()
            .with_context(|| format!("cannot find the folder {}", dir.display()))
    }
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Up { shape, common } => up(&shape, &common),
        Command::Hold { shape } => hold(&shape),
        Command::Down { common } => down(&common),
        Command::Status { common } => status(&common),
        Command::Env { common } => env(&common),
    }
}

fn up(shape: &Shape, common: &Common) -> Result<()> {
    let dir = common.dir()?;
    if let Some(running) = DetachedCluster::load(&dir)?.filter(DetachedCluster::is_alive) {
        return Report::of(State::AlreadyUp, &running).print(common.json);
    }
    let cluster = shape.builder().start_detached(&dir)?;
    Report::of(State::Up, &cluster).print(common.json)
}

fn hold(shape: &Shape) -> Result<()> {
    let cluster = shape.builder().start()?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(&Report::of_held(&cluster))?)?;
    out.flush()?;
    std::io::stdin()
        .read_line(&mut String::new())
        .context("standard input cannot be read")?;
    drop(cluster);
    Ok(())
}

fn status(common: &Common) -> Result<()> {
    let report = match DetachedCluster::load(&common.dir()?)? {
        Some(cluster) if cluster.is_alive() => Report::of(State::Up, &cluster),
        Some(cluster) => Report::of(State::Broken, &cluster),
        None => Report::nothing(State::Down),
    };
    report.print(common.json)
}

fn env(common: &Common) -> Result<()> {
    let cluster = DetachedCluster::load(&common.dir()?)?.filter(DetachedCluster::is_alive);
    let cluster = cluster.context("no cluster is up: start one with `cargo xtask cluster up --etcd 1`")?;
    Report::of(State::Up, &cluster).print_variables(common.json)
}

fn down(common: &Common) -> Result<()> {
    let report = match DetachedCluster::load(&common.dir()?)? {
        Some(cluster) => {
            let killed = cluster.down()?;
            Report {
                processes: killed.iter().map(Row::of).collect(),
                ..Report::nothing(State::TakenDown)
            }
        }
        None => Report::nothing(State::Down),
    };
    report.print(common.json)
}

fn duration(text: &str) -> Result<Duration> {
    tensorhold_core::duration::parse(text).with_context(|| format!("`{text}` is no duration: write 500ms, 5s or 2m"))
}
