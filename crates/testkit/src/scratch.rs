//! A cluster's temporary folder, removed with the cluster, or by a later cluster if the owner was killed.
//!
//! Each folder holds a locked file. The kernel drops the lock when its owner ends, however it ends; a folder whose lock
//! is free has no owner, and the next process that creates a folder removes it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

const PREFIX: &str = "tensorhold-cluster-";
const LOCK: &str = "owner.lock";

#[derive(Debug)]
pub(crate) struct Scratch {
    folder: Option<TempDir>,
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> Result<Self> {
        remove_ownerless(parent);
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
        let folder = made.with_context(|| format!("cannot make a folder in {}", parent.display()))?;
        // Locked before it gets the name that other processes look for: none of them sees a folder of ours with a free
        // lock.
        let unnamed = folder.path().join("owner.lock.new");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(&unnamed, folder.path().join(LOCK))?;
        Ok(Self {
            path: folder.path().to_owned(),
            folder: Some(folder),
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if keep_is_wanted()
            && let Some(folder) = self.folder.take()
        {
            fs::remove_file(folder.path().join(LOCK)).ok(); // without a lock file no later cluster removes it
            tell(&format!(
                "TENSORHOLD_KEEP is set: logs and data stay in {}\n",
                folder.keep().display()
            ));
        }
    }
}

fn keep_is_wanted() -> bool {
    std::env::var_os("TENSORHOLD_KEEP").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Best effort: a folder that cannot be removed now is left for the next time.
fn remove_ownerless(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if lock.try_lock().is_ok() {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Prints a message for the person who reads the test's output.
#[expect(
    clippy::print_stderr,
    reason = "a failed test shows its logs where the test runner looks for them"
)]
pub(crate) fn tell(message: &str) {
    eprint!("{message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ownerless_folder_is_removed_by_the_next_and_an_owned_one_is_not() {
        let parent = tempfile::tempdir().expect("a folder");
        let owned = Scratch::new_in(parent.path()).expect("a scratch folder");
        let abandoned = parent.path().join(format!("{PREFIX}abandoned"));
        fs::create_dir(&abandoned).expect("a folder");
        File::create(abandoned.join(LOCK)).expect("a lock that nobody holds");
        let next = Scratch::new_in(parent.path()).expect("a scratch folder");
        assert!(owned.path().exists() && next.path().exists());
        assert!(!abandoned.exists());
    }
}
