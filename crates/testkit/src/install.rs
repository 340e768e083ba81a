//! Where `.ci/setup` put the programs that we start.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The programs that `.ci/setup` installed, found by the variables that Cargo sets (`.cargo/config.toml`).
#[derive(Debug, Clone)]
pub struct Install {
    venv: PathBuf,
    etcd_bin: PathBuf,
}

impl Install {
    /// Reads `TENSORHOLD_VENV` and `TENSORHOLD_ETCD_BIN`.
    ///
    /// # Errors
    /// When one is not set.
    pub fn from_env() -> Result<Self> {
        Ok(Self {
            venv: folder("TENSORHOLD_VENV")?,
            etcd_bin: folder("TENSORHOLD_ETCD_BIN")?,
        })
    }

    /// The interpreter of the venv that has Mooncake's module.
    ///
    /// # Errors
    /// When it is not there.
    pub fn python(&self) -> Result<PathBuf> {
        there(self.venv.join("bin/python"))
    }

    /// Mooncake's master, out of the wheel.
    ///
    /// # Errors
    /// When it is not there.
    pub fn mooncake_master(&self) -> Result<PathBuf> {
        let lib = self.venv.join("lib");
        let pythons = fs::read_dir(&lib).with_context(|| missing(&lib))?.flatten();
        let mut masters = pythons.map(|entry| entry.path().join("site-packages/mooncake/mooncake_master"));
        masters
            .find(|path| path.exists())
            .with_context(|| missing(&lib.join("python3.*/…/mooncake_master")))
    }

    /// The etcd server.
    ///
    /// # Errors
    /// When it is not there.
    pub fn etcd(&self) -> Result<PathBuf> {
        there(self.etcd_bin.join("etcd"))
    }

    /// etcd's client.
    ///
    /// # Errors
    /// When it is not there.
    pub fn etcdctl(&self) -> Result<PathBuf> {
        there(self.etcd_bin.join("etcdctl"))
    }

    /// etcd's tool for its files: it restores snapshots.
    ///
    /// # Errors
    /// When it is not there.
    pub fn etcdutl(&self) -> Result<PathBuf> {
        there(self.etcd_bin.join("etcdutl"))
    }
}

fn folder(variable: &str) -> Result<PathBuf> {
    match env::var_os(variable) {
        Some(value) if !value.is_empty() => Ok(value.into()),
        _ => bail!("{variable} is not set: run this through cargo inside the repository, after .ci/setup"),
    }
}

fn there(path: PathBuf) -> Result<PathBuf> {
    if !path.exists() {
        bail!(missing(&path));
    }
    Ok(path)
}

fn missing(path: &Path) -> String {
    format!("{} does not exist: run .ci/setup", path.display())
}
