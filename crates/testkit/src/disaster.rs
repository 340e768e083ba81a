//! The disasters that befall an etcd in the field: its quota runs out, it is restored from a snapshot, it is replaced
//! by an empty one.
//!
//! All of it is done as an operator would, with etcd's own tools, and on the same addresses: a connected client sees
//! only that the cluster was gone for a moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::etcd::EtcdCluster;

/// The revision bump that etcd's documentation advises.
const BUMP: u64 = 1_000_000_000;

/// What happens to etcd's revisions when it is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revisions {
    /// They go on from the snapshot's: the same revisions are given out again.
    Repeat,
    /// They leap far ahead of all that were ever given out (`--bump-revision … --mark-compacted`).
    Bumped,
}

impl EtcdCluster {
    /// Saves a snapshot of the first node. Returns its file, in the cluster's folder.
    ///
    /// # Errors
    /// When `etcdctl` fails.
    pub fn snapshot(&self) -> Result<PathBuf> {
        let taken = (0..).map(|n| self.dir().join(format!("snapshot-{n}.db")));
        let file = taken
            .into_iter()
            .find(|file| !file.exists())
            .context("no name is left for a snapshot")?;
        self.etcdctl(&["snapshot", "save", &file.display().to_string()])?;
        Ok(file)
    }

    /// Stops all nodes, restores their data from a snapshot, and starts them again. They serve when this returns.
    ///
    /// # Errors
    /// When `etcdutl` fails, or a node does not come back.
    pub fn restore(&self, snapshot: &Path, revisions: Revisions) -> Result<()> {
        self.rebuild(|member| {
            let mut arguments = vec![
                "snapshot".to_owned(),
                "restore".to_owned(),
                snapshot.display().to_string(),
                format!("--data-dir={}", member.data.display()),
                format!("--name={}", member.name),
                format!("--initial-cluster={}", member.everyone),
                format!("--initial-advertise-peer-urls={}", member.peer_url),
            ];
            if revisions == Revisions::Bumped {
                arguments.extend([format!("--bump-revision={BUMP}"), "--mark-compacted".to_owned()]);
            }
            run(&self.install().etcdutl()?, &arguments).map(drop)
        })
    }

    /// Stops all nodes and starts them again on empty folders: another cluster on the same addresses.
    ///
    /// # Errors
    /// When a node does not come back.
    pub fn replace(&self) -> Result<()> {
        self.rebuild(|_| Ok(()))
    }

    /// Makes room as an operator would: compacts, defragments, and clears the alarm.
    ///
    /// # Errors
    /// When `etcdctl` fails.
    pub fn make_room(&self) -> Result<()> {
        let revision = self.revision()?.to_string();
        // etcd may have compacted up to there by itself.
        if let Err(error) = self.etcdctl(&["compact", "--physical", &revision])
            && !format!("{error:#}").contains("compacted")
        {
            return Err(error);
        }
        self.etcdctl(&["defrag"])?;
        self.etcdctl(&["alarm", "disarm"]).map(drop)
    }

    /// Runs `etcdctl` on this cluster and returns its output.
    ///
    /// # Errors
    /// When it fails; the message contains its output.
    pub fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec![format!("--endpoints={}", self.endpoints().join(","))];
        if arguments.first() == Some(&"snapshot") {
            // A snapshot is taken from one node.
            all = vec![format!("--endpoints={}", self.endpoints()[0])];
        }
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        run(&self.install().etcdctl()?, &all)
    }

    fn rebuild(&self, fill: impl Fn(&Rebuilt<'_>) -> Result<()>) -> Result<()> {
        self.nodes().iter().try_for_each(crate::node::Node::kill)?;
        for member in self.rebuilt() {
            fs::remove_dir_all(&member.data).with_context(|| format!("cannot remove {}", member.data.display()))?;
            fill(&member)?;
        }
        self.nodes().iter().try_for_each(crate::node::Node::relaunch)?;
        self.nodes().iter().try_for_each(crate::node::Node::wait_ready)
    }
}

/// A member whose data is created anew.
pub(crate) struct Rebuilt<'a> {
    pub(crate) name: &'a str,
    pub(crate) peer_url: &'a str,
    pub(crate) everyone: String,
    pub(crate) data: PathBuf,
}

fn run(program: &Path, arguments: &[String]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("no_proxy", "127.0.0.1")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if !output.status.success() {
        bail!("{} {} failed: {said}", program.display(), arguments.join(" "));
    }
    Ok(said)
}
