//! Where a cluster lives: its folder, its ports, and the settings that all its processes share.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use parking_lot::Mutex;

use crate::detached::Journal;
use crate::install::Install;
use crate::node::{Node, Ready};
use crate::ports::Port;
use crate::process::ProcessSpec;
use crate::scratch::{self, Scratch};
use crate::spawner::Lifetime;

/// The folder and the ports of a cluster. They are released when the last part of the cluster is dropped.
#[derive(Debug)]
pub(crate) struct Site {
    dir: PathBuf,
    pub(crate) install: Install,
    ports: Mutex<Vec<Port>>,
    journal: Option<Journal>,
    _scratch: Option<Scratch>,
}

impl Site {
    /// In a temporary folder; its processes die with us.
    pub(crate) fn temporary() -> Result<Self> {
        let scratch = Scratch::new()?;
        let dir = scratch.path().to_owned();
        Ok(Self {
            dir,
            install: Install::from_env()?,
            ports: Mutex::default(),
            journal: None,
            _scratch: Some(scratch),
        })
    }

    /// In a folder that stays; its processes outlive us, and each is recorded in the journal as soon as it runs.
    pub(crate) fn detached(dir: PathBuf, journal: Journal) -> Result<Self> {
        let install = Install::from_env()?;
        Ok(Self {
            dir,
            install,
            ports: Mutex::default(),
            journal: Some(journal),
            _scratch: None,
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.journal.is_some()
    }

    pub(crate) fn port(&self) -> Result<u16> {
        let port = Port::reserve()?;
        let number = port.number();
        self.ports.lock().push(port);
        Ok(number)
    }

    /// A folder for one process's data.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(path)
    }

    /// A process of this cluster, with the settings that they all share.
    pub(crate) fn spec(&self, name: &str, program: impl Into<OsString>) -> ProcessSpec {
        let lifetime = if self.is_detached() {
            Lifetime::Detached
        } else {
            Lifetime::Bound
        };
        ProcessSpec::new(name, program, self.dir.join(format!("{name}.log")))
            .env("MC_TCP_BIND_ADDRESS", "127.0.0.1")
            .env("no_proxy", "127.0.0.1")
            .lifetime(lifetime)
    }

    pub(crate) fn launch(&self, spec: ProcessSpec, ready: Ready) -> Result<Node> {
        let node = Node::launch(spec, ready)?;
        if let Some(journal) = &self.journal {
            journal.note(&node)?;
        }
        Ok(node)
    }
}

/// Ends all nodes side by side; before that, prints their logs if a test or a start failed.
pub(crate) fn close<'a>(nodes: impl Iterator<Item = &'a Node> + Clone, started: bool) {
    if std::thread::panicking() || !started {
        nodes.clone().for_each(|node| scratch::tell(&node.log_tail()));
    }
    nodes.clone().for_each(Node::send_kill);
    nodes.for_each(|node| drop(node.kill())); // if the kernel does not end a process, nor can we
}
