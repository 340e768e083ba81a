//! The record of the cluster that `tensorhold up` has started: one file in a folder.
//!
//! ```text
//! <folder>/state.json   which processes, and where they listen; written anew after each start of a process
//! <folder>/lock         one `up` or `down` at a time
//! <folder>/run/         logs and data
//! ```
//! A process is recorded as soon as it runs, so an `up` that is killed half-way leaves a record of what it has started,
//! except for a process that was started in that very moment.
//!
//! The record says which programs `up` starts again, and what `eval "$(tensorhold env)"` runs. So it is believed only if
//! no other user can have written it: folder and file belong to this user, are no links, and nobody else may write to
//! them. A folder above it may be anyone's: whatever is put in this one's place is looked at in the same way.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{ErrorKind, SystemClock, poll_until};
use tensorhold_local::ProcessIdentity;

use crate::failure::Failure;
use crate::io::Host;

const STATE: &str = "state.json";
const VERSION: u32 = 1;
/// How long another `up` or `down` is waited for.
const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// A cluster on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    version: u32,
    /// Whether every process was ready.
    pub(crate) ready: bool,
    pub(crate) endpoints: Endpoints,
    pub(crate) processes: Vec<Recorded>,
    #[serde(skip)]
    folder: PathBuf,
}

/// Where a cluster listens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    pub(crate) etcd: String,
    pub(crate) master: String,
    pub(crate) admin: String,
    pub(crate) metadata: String,
}

/// One process, and how it is started again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) identity: ProcessIdentity,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) log: PathBuf,
}

/// The folder that a command means.
pub(crate) fn folder(given: Option<&Path>, host: &Host) -> Result<PathBuf, Failure> {
    if let Some(folder) = given {
        return std::path::absolute(folder).map_err(|error| cannot("find", folder, &error));
    }
    // As the XDG base directory specification says: a relative path counts as none.
    let absolute = |name: &str| host.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let none = || {
        Failure::usage(
            "there is no folder for the cluster on this machine",
            "neither XDG_STATE_HOME nor HOME is set",
            "name a folder with --dir",
        )
    };
    Ok(state.ok_or_else(none)?.join("tensorhold"))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        ErrorKind::Denied,
        format!("cannot {what} {}", path.display()),
        error.to_string(),
        "check the folder's permissions, or name another with --dir",
    )
}

impl State {
    pub(crate) fn new(folder: &Path, endpoints: Endpoints) -> Self {
        Self {
            version: VERSION,
            ready: false,
            endpoints,
            processes: Vec::new(),
            folder: folder.to_owned(),
        }
    }

    /// What is recorded in a folder, if anything is.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>, Failure> {
        let path = folder.join(STATE);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        is_ours(folder, fs::symlink_metadata(folder), Metadata::is_dir)?;
        is_ours(&path, fs::symlink_metadata(&path), Metadata::is_file)?;
        // And the file that is read, if another user could exchange them meanwhile, from a folder above.
        is_ours(&path, file.metadata(), Metadata::is_file)?;
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|error| cannot("read", &path, &error))?;
        let odd = |why: String| {
            let to_do = "if no cluster runs there, remove the file; `ps` shows what runs";
            Failure::new(
                ErrorKind::Corrupt,
                format!("{} is no record of `tensorhold up`", path.display()),
                why,
                to_do,
            )
        };
        let mut state: Self = serde_json::from_str(&text).map_err(|error| odd(error.to_string()))?;
        if state.version != VERSION {
            return Err(odd(format!(
                "it was written by another release (version {})",
                state.version
            )));
        }
        state.folder = folder.to_owned();
        Ok(Some(state))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where logs and data are.
    pub(crate) fn run_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    pub(crate) fn process(&self, name: &str) -> Option<&Recorded> {
        self.processes.iter().find(|process| process.name == name)
    }

    /// Records a process, in place of an earlier one of its name.
    pub(crate) fn record(&mut self, process: Recorded) -> Result<(), Failure> {
        self.processes.retain(|other| other.name != process.name);
        self.processes.push(process);
        self.save()
    }

    /// Whether this folder has a record of a cluster.
    pub(crate) fn is_recorded(&self) -> bool {
        self.folder.join(STATE).exists()
    }

    /// Writes in one step: a reader sees the old record or the new one.
    pub(crate) fn save(&self) -> Result<(), Failure> {
        let (path, new) = (self.folder.join(STATE), self.folder.join("state.json.new"));
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&new).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| cannot("write", &new, &error))?;
        fs::rename(&new, &path).map_err(|error| cannot("write", &path, &error))
    }

    /// Removes the data and the record, in this order: what is recorded is removed by the next `down`.
    pub(crate) fn remove(&self) -> Result<(), Failure> {
        let run = self.run_folder();
        match fs::remove_dir_all(&run) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cannot("remove", &run, &error)),
            _ => {}
        }
        let path = self.folder.join(STATE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot("remove", &path, &error)),
            _ => Ok(()),
        }
    }
}

/// Makes a folder of ours: nobody else may look into it.
pub(crate) fn make_folder(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| cannot("make", path, &error))
}

/// An error if another user may have written what is there.
fn is_ours(path: &Path, found: std::io::Result<Metadata>, is: fn(&Metadata) -> bool) -> Result<(), Failure> {
    const FOR_OTHERS: u32 = 0o022;
    let found = found.map_err(|error| cannot("look at", path, &error))?;
    let why = if !is(&found) {
        "it is a link, or something else than `tensorhold up` makes"
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user, who could have programs run as you"
    } else if found.mode() & FOR_OTHERS != 0 {
        "other users may write to it, and could have programs run as you"
    } else {
        return Ok(());
    };
    Err(Failure::new(
        ErrorKind::Denied,
        format!("{} is not safe to use", path.display()),
        why,
        "name a folder of your own with --dir; `chmod go-w` takes the permission from others",
    ))
}

/// One `up` or `down` at a time in a folder; until the file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File, Failure> {
    make_folder(folder)?;
    is_ours(folder, fs::symlink_metadata(folder), Metadata::is_dir)?;
    let path = folder.join("lock");
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|error| cannot("open", &path, &error))?;
    let mut refused = None;
    let locked = poll_until(
        &SystemClock::new(),
        LOCK_WITHIN,
        Duration::from_millis(50),
        || match file.try_lock() {
            Ok(()) => Some(()),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(error)) => {
                refused = Some(error);
                Some(())
            }
        },
    );
    if let Some(error) = refused {
        return Err(cannot("lock", &path, &error));
    }
    if locked.is_none() {
        return Err(Failure::new(
            ErrorKind::Conflict,
            format!(
                "another `tensorhold up` or `tensorhold down` is at work in {}",
                folder.display()
            ),
            "only one may be at a time",
            "wait until it has ended, and try again",
        ));
    }
    Ok(file)
}
