//! The output of the cluster commands: a table for people, JSON for scripts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use tensorhold_testkit::{Cluster, DetachedCluster, Endpoints, Node, RecordedProcess};

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    Up,
    AlreadyUp,
    /// Recorded, but not all of its processes run.
    Broken,
    Down,
    TakenDown,
}

/// What each of the commands prints, as JSON or as a table.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) state: State,
    pub(super) endpoints: Option<Endpoints>,
    pub(super) processes: Vec<Row>,
}

#[derive(Serialize)]
pub(super) struct Row {
    name: String,
    pid: u32,
    running: bool,
    log: PathBuf,
}

impl Row {
    pub(super) fn of(process: &RecordedProcess) -> Self {
        let running = process.identity.is_alive();
        Self {
            name: process.name.clone(),
            pid: process.identity.pid,
            running,
            log: process.log.clone(),
        }
    }

    fn of_node(node: &Node) -> Self {
        Self {
            name: node.name().to_owned(),
            pid: node.pid(),
            running: node.is_running(),
            log: node.log().to_owned(),
        }
    }
}

impl Report {
    pub(super) fn of(state: State, cluster: &DetachedCluster) -> Self {
        let processes = cluster.processes.iter().map(Row::of).collect();
        Self {
            state,
            endpoints: cluster.endpoints.clone(),
            processes,
        }
    }

    /// A cluster that lives and dies with this process.
    pub(super) fn of_held(cluster: &Cluster) -> Self {
        Self {
            state: State::Up,
            endpoints: Some(cluster.endpoints()),
            processes: cluster.nodes().map(Row::of_node).collect(),
        }
    }

    pub(super) fn nothing(state: State) -> Self {
        Self {
            state,
            endpoints: None,
            processes: Vec::new(),
        }
    }

    pub(super) fn print(&self, json: bool) -> Result<()> {
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

    pub(super) fn print_variables(&self, json: bool) -> Result<()> {
        if json {
            let variables: BTreeMap<String, String> = self.variables().into_iter().collect();
            println!("{}", serde_json::to_string_pretty(&variables)?);
        } else {
            println!("{}", self.exports());
        }
        Ok(())
    }

    /// Lines for a shell.
    fn exports(&self) -> String {
        let lines = self.variables();
        let lines = lines.iter().map(|(key, value)| format!("  export {key}='{value}'"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The variables by which clients find the cluster.
    fn variables(&self) -> Vec<(String, String)> {
        let Some(endpoints) = &self.endpoints else {
            return Vec::new();
        };
        let mut variables = vec![
            ("TENSORHOLD_MASTER".to_owned(), endpoints.master.clone()),
            ("TENSORHOLD_METADATA".to_owned(), endpoints.metadata.clone()),
            ("TENSORHOLD_ADMIN".to_owned(), endpoints.admin.join(",")),
        ];
        if !endpoints.etcd.is_empty() {
            variables.push(("TENSORHOLD_ETCD".to_owned(), endpoints.etcd.join(",")));
        }
        variables.extend(endpoints.client_env.iter().cloned());
        variables
    }
}
