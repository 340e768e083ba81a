//! `cargo xtask cluster up | status | down`: a real cluster that stays until it is taken down.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use holdfast_testkit::{Cluster, DetachedCluster, Endpoints, RecordedProcess};
use serde::Serialize;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a cluster and leave it running
    Up {
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        common: Common,
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
}

#[derive(Args)]
pub(crate) struct Common {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Where the cluster's state, logs and data are; one folder, one cluster [default: target/holdfast-cluster]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl Common {
    fn dir(&self) -> Result<PathBuf> {
        let dir = self
            .state_dir
            .clone()
            .unwrap_or_else(|| crate::target_dir().join("holdfast-cluster"));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
        dir.canonicalize()
            .with_context(|| format!("cannot find the folder {}", dir.display()))
    }
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Up { shape, common } => up(&shape, &common),
        Command::Down { common } => down(&common),
        Command::Status { common } => status(&common),
    }
}

fn up(shape: &Shape, common: &Common) -> Result<()> {
    let dir = common.dir()?;
    if let Some(running) = DetachedCluster::load(&dir)?.filter(DetachedCluster::is_alive) {
        return Report::of(State::AlreadyUp, &running).print(common.json);
    }
    let cluster = Cluster::builder()
        .p2p_metadata(true)
        .holders(shape.holders)
        .segment_mib(shape.segment_mib)
        .ssd(shape.ssd)
        .ha(shape.ha)
        .etcd_nodes(shape.etcd)
        .lease_ttl(shape.lease_ttl)
        .start_detached(&dir)?;
    Report::of(State::Up, &cluster).print(common.json)
}

fn status(common: &Common) -> Result<()> {
    let report = match DetachedCluster::load(&common.dir()?)? {
        Some(cluster) if cluster.is_alive() => Report::of(State::Up, &cluster),
        Some(cluster) => Report::of(State::Broken, &cluster),
        None => Report::nothing(State::Down),
    };
    report.print(common.json)
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

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum State {
    Up,
    AlreadyUp,
    /// Recorded, but not all of it runs.
    Broken,
    Down,
    TakenDown,
}

/// What each of the commands prints, as JSON or as a table.
#[derive(Serialize)]
struct Report {
    state: State,
    endpoints: Option<Endpoints>,
    processes: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    pid: u32,
    running: bool,
    log: PathBuf,
}

impl Row {
    fn of(process: &RecordedProcess) -> Self {
        let running = process.identity.is_alive();
        Self {
            name: process.name.clone(),
            pid: process.identity.pid,
            running,
            log: process.log.clone(),
        }
    }
}

impl Report {
    fn of(state: State, cluster: &DetachedCluster) -> Self {
        let processes = cluster.processes.iter().map(Row::of).collect();
        Self {
            state,
            endpoints: cluster.endpoints.clone(),
            processes,
        }
    }

    fn nothing(state: State) -> Self {
        Self {
            state,
            endpoints: None,
            processes: Vec::new(),
        }
    }

    fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        if !self.processes.is_empty() {
            println!("{}", self.table());
        }
        println!("{}", self.what_next());
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_HORIZONTAL_ONLY)
            .set_header(["process", "pid", "state", "log"]);
        for row in &self.processes {
            let state = if row.running { "running" } else { "ended" };
            table.add_row([&row.name, &row.pid.to_string(), state, &row.log.display().to_string()]);
        }
        table
    }

    fn what_next(&self) -> String {
        match self.state {
            State::Up => format!(
                "The cluster is up. To use it:\n\n{}\n\nWhen done: cargo xtask cluster down",
                self.exports()
            ),
            State::AlreadyUp => format!(
                "A cluster is up already; nothing was changed. To use it:\n\n{}\n\nFor another one: cargo xtask cluster down",
                self.exports()
            ),
            State::Broken => {
                "Not all of the cluster runs: the logs say why. Start it anew with `cargo xtask cluster up`, \
                              or clean up with `cargo xtask cluster down`."
                    .to_owned()
            }
            State::Down => "No cluster is up. Start one: cargo xtask cluster up".to_owned(),
            State::TakenDown => format!("The cluster is down; {} processes were killed.", self.processes.len()),
        }
    }

    /// Lines for a shell.
    fn exports(&self) -> String {
        let Some(endpoints) = &self.endpoints else {
            return String::new();
        };
        let mut variables = vec![
            ("HOLDFAST_MASTER", endpoints.master.clone()),
            ("HOLDFAST_METADATA", endpoints.metadata.clone()),
            ("HOLDFAST_ADMIN", endpoints.admin.join(",")),
        ];
        if !endpoints.etcd.is_empty() {
            variables.push(("HOLDFAST_ETCD", endpoints.etcd.join(",")));
        }
        variables.extend(
            endpoints
                .client_env
                .iter()
                .map(|(key, value)| (key.as_str(), value.clone())),
        );
        let lines = variables.iter().map(|(key, value)| format!("  export {key}='{value}'"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// `5s`, `500ms`, `2m`.
fn duration(text: &str) -> Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .with_context(|| format!("`{text}` has no number: write 5s or 500ms"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => anyhow::bail!("`{text}` needs a unit, ms, s or m: write 5s or 500ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms").expect("a duration"), Duration::from_millis(500));
        assert_eq!(duration("5s").expect("a duration"), Duration::from_secs(5));
        assert_eq!(duration("2m").expect("a duration"), Duration::from_secs(120));
        for wrong in ["5", "s", "", "5h", "-1s"] {
            duration(wrong).expect_err(wrong);
        }
    }
}
