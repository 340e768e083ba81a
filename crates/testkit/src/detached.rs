//! A cluster that outlives the process that started it, described by a state file.
//!
//! The state file is written again after each launch, so even a start that is killed half-way leaves a record of the
//! running processes. A record identifies a process uniquely ([`ProcessIdentity`]): `down` never kills a later process
//! that happens to have the same pid.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorhold_local::ProcessIdentity;

use crate::builder::ClusterBuilder;
use crate::cluster::Endpoints;
use crate::node::Node;
use crate::ports::with_other_ports_if_taken;
use crate::site::Site;
use crate::wait::{EVERY, poll};

const STATE: &str = "state.json";
const DOWN_WITHIN: Duration = Duration::from_secs(20);

/// A cluster that is not bound to the life of this process. Dropping this value does nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DetachedCluster {
    /// Where it listens; `None` until every process was ready.
    pub endpoints: Option<Endpoints>,
    /// Its processes.
    pub processes: Vec<RecordedProcess>,
    #[serde(skip)]
    dir: PathBuf,
}

/// One process in the state file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordedProcess {
    /// Its name, such as `holder-0`.
    pub name: String,
    /// Its unique identity.
    pub identity: ProcessIdentity,
    /// Where its output goes.
    pub log: PathBuf,
}

impl DetachedCluster {
    pub(crate) fn start(builder: &ClusterBuilder, dir: &Path) -> Result<Self> {
        let _only_one = lock(dir)?;
        if let Some(previous) = Self::load(dir)? {
            if previous.is_alive() {
                bail!("a cluster is up already in {}: take it down first", dir.display());
            }
            previous.end()?;
        }
        with_other_ports_if_taken(|| {
            let run = dir.join("run"); // logs and data
            if run.exists() {
                fs::remove_dir_all(&run).with_context(|| format!("cannot remove {}", run.display()))?;
            }
            fs::create_dir_all(&run).with_context(|| format!("cannot make {}", run.display()))?;
            let journal = Journal::new(dir);
            let cluster = builder.start_at(Site::detached(run, journal)?)?;
            let mut record = Self::load(dir)?.context("the state file has vanished")?;
            record.endpoints = Some(cluster.endpoints());
            record.save()?;
            cluster.let_go()?;
            Ok(record)
        })
    }

    /// The cluster recorded in this folder, if there is one.
    ///
    /// # Errors
    /// When the state file cannot be read.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(STATE);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut record: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a state file of this tool: remove it", path.display()))?;
        record.dir = dir.to_owned();
        Ok(Some(record))
    }

    /// Whether every process started and still runs.
    pub fn is_alive(&self) -> bool {
        self.endpoints.is_some() && self.processes.iter().all(|process| process.identity.is_alive())
    }

    /// Kills those of its processes that are still the recorded ones, and removes the record. Returns the killed ones.
    ///
    /// # Errors
    /// When a process does not end.
    pub fn down(self) -> Result<Vec<RecordedProcess>> {
        let _only_one = lock(&self.dir)?;
        self.end()
    }

    fn end(self) -> Result<Vec<RecordedProcess>> {
        let mut killed = Vec::new();
        for process in &self.processes {
            if process
                .identity
                .kill()
                .with_context(|| format!("cannot kill {}", process.name))?
            {
                killed.push(process.clone());
            }
        }
        for process in &killed {
            poll(DOWN_WITHIN, EVERY, || (!process.identity.is_alive()).then_some(()))
                .with_context(|| format!("{} did not end after SIGKILL", process.name))?;
        }
        let path = self.dir.join(STATE);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        Ok(killed)
    }

    /// Writes in one step: a reader sees the old record or the new one.
    fn save(&self) -> Result<()> {
        let (path, new) = (self.dir.join(STATE), self.dir.join("state.json.new"));
        fs::write(&new, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Records each process of a detached cluster as soon as it runs.
#[derive(Debug)]
pub(crate) struct Journal(Mutex<DetachedCluster>);

impl Journal {
    fn new(dir: &Path) -> Self {
        Self(Mutex::new(DetachedCluster {
            dir: dir.to_owned(),
            ..DetachedCluster::default()
        }))
    }

    pub(crate) fn note(&self, node: &Node) -> Result<()> {
        let mut record = self.0.lock();
        let (name, log) = (node.name().to_owned(), node.log().to_owned());
        record.processes.push(RecordedProcess {
            name,
            identity: node.identity(),
            log,
        });
        record.save()
    }
}

/// Allows one start or one end at a time in a folder.
fn lock(dir: &Path) -> Result<File> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join("lock");
    let lock = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(lock)
}
