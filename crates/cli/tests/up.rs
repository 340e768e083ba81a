//! `tensorhold up` and `tensorhold down`, from what is installed here.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Shell, golden};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tensorhold_core::{Clock as _, SystemClock};
use tensorhold_testkit::{ProcessIdentity, poll};

/// A folder with a cluster in it, which is ended whatever happens.
struct Folder {
    shell: Shell,
    scratch: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut shell = Shell::new();
        shell.usual = vec!["--dir".to_owned(), scratch.path().join("state").display().to_string()];
        Self { shell, scratch }
    }

    fn state(&self) -> PathBuf {
        self.scratch.path().join("state/state.json")
    }

    fn processes(&self) -> Vec<(String, ProcessIdentity)> {
        let state: Value = serde_json::from_str(&fs::read_to_string(self.state()).expect("a record")).expect("JSON");
        let one = |process: &Value| {
            let identity = serde_json::from_value(process["identity"].clone()).expect("an identity");
            (process["name"].as_str().expect("a name").to_owned(), identity)
        };
        state["processes"]
            .as_array()
            .expect("processes")
            .iter()
            .map(one)
            .collect()
    }

    fn process(&self, name: &str) -> ProcessIdentity {
        let all = self.processes();
        all.into_iter()
            .find(|(other, _)| other == name)
            .expect("such a process")
            .1
    }
}

impl Folder {
    fn kill(&self, name: &str) {
        let process = self.process(name);
        assert!(process.kill().expect("killed"));
        let gone = poll(Duration::from_secs(10), Duration::from_millis(10), || {
            (!process.is_alive()).then_some(())
        });
        gone.expect("gone");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let ran = self.shell.run(&["down"]);
        assert!(std::thread::panicking() || ran.code == 0, "{ran:?}");
    }
}

/// The addresses at which a process listens, from the kernel's tables.
fn listens_at(pid: u32) -> Vec<String> {
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("its files")
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text =
            fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("net").join(table)).expect("a table");
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            const LISTEN: &str = "0A";
            if fields[3] == LISTEN && sockets.iter().any(|socket| socket == fields[9]) {
                found.push(fields[1].to_owned());
            }
        }
    }
    found
}

#[test]
fn up_twice_is_once_and_down_leaves_nothing() {
    let folder = Folder::new();
    let started = folder.shell.run(&["up", "--memory", "64MiB"]);
    assert_eq!(started.code, 0, "{started:?}");
    let processes = folder.processes();
    assert_eq!(
        processes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["etcd", "master", "holder"]
    );
    assert!(processes.iter().all(|(_, identity)| identity.is_alive()));

    // The transfer engine of the holder listens on every address, whatever it is told; nothing else does.
    const LOOPBACK: &str = "0100007F:";
    for (name, identity) in processes.iter().filter(|(name, _)| name != "holder") {
        let at = listens_at(identity.pid);
        assert!(
            !at.is_empty() && at.iter().all(|address| address.starts_with(LOOPBACK)),
            "{name}: {at:?}"
        );
    }

    let again = folder.shell.run(&["up"]);
    assert_eq!(folder.processes(), processes, "the same processes");
    let env = folder.shell.run(&["env"]);
    let doctor = folder.shell.run(&["doctor"]);
    let status = folder.shell.run(&["status"]);
    let down = folder.shell.run(&["down"]);
    assert!(processes.iter().all(|(_, identity)| !identity.is_alive()));
    assert!(!folder.state().exists() && !folder.scratch.path().join("state/run").exists());
    let nothing = [folder.shell.run(&["down"]), folder.shell.run(&["env"])];
    let all: Vec<_> = [started, again, env, doctor, status, down]
        .into_iter()
        .chain(nothing)
        .collect();
    golden("up", &all);
}

#[test]
fn up_and_down_take_no_longer_than_they_may() {
    let clock = SystemClock::new();
    let folder = Folder::new();
    let late = folder.shell.run(&["up", "--memory", "64MiB", "--timeout", "1ms"]);
    assert_eq!(late.code, 3, "{late:?}");
    assert!(late.err.contains("it was not ready in time"), "{late:?}");
    assert!(
        folder.processes().iter().all(|(_, identity)| !identity.is_alive()),
        "it ends what it has started"
    );

    assert_eq!(folder.shell.run(&["up", "--memory", "64MiB"]).code, 0);
    // A process that is stopped does not end when it is asked to.
    let etcd = folder.process("etcd");
    let pid = i32::try_from(etcd.pid)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id");
    kill_process(pid, Signal::STOP).expect("stopped");
    let begun = clock.now();
    let down = folder.shell.run(&["down", "--timeout", "100ms"]);
    let took = clock.now().since(begun);
    assert!(down.code == 0 && !etcd.is_alive(), "{down:?}");
    assert!(took < Duration::from_secs(4), "it was killed after {took:?}");
}

#[test]
fn what_has_ended_is_started_again() {
    let folder = Folder::new();
    assert_eq!(folder.shell.run(&["up", "--memory", "64MiB"]).code, 0);
    let before = folder.processes();
    folder.kill("holder");
    let holder_dead = folder.shell.run(&["up"]);
    assert_eq!(
        (folder.process("etcd"), folder.process("master")),
        (before[0].1.clone(), before[1].1.clone())
    );

    folder.kill("master");
    let holder = folder.process("holder");
    let master_dead = folder.shell.run(&["up"]);
    assert!(!holder.is_alive(), "it is started again with the master");
    assert!(folder.processes().iter().all(|(_, identity)| identity.is_alive()));

    // The index outlives its process.
    assert_eq!(folder.shell.run(&["budget", "set", "1GiB", "--store", "kept"]).code, 0);
    folder.kill("etcd");
    let etcd_dead = folder.shell.run(&["up"]);
    let budget = folder.shell.run(&["budget"]);
    golden("up_repairs", &[holder_dead, master_dead, etcd_dead, budget]);
}

#[test]
fn a_process_that_is_not_the_recorded_one_is_left_alone() {
    let folder = Folder::new();
    let mut bystander = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .expect("a bystander");
    let identity = ProcessIdentity::of(bystander.id()).expect("it runs");
    // As if the pid had belonged to our etcd before.
    let state = format!(
        r#"{{"version": 1, "ready": true,
            "endpoints": {{"etcd": "http://127.0.0.1:1", "master": "127.0.0.1:2", "admin": "http://127.0.0.1:3",
                           "metadata": "P2PHANDSHAKE"}},
            "processes": [{{"name": "etcd", "program": "/bin/false", "arguments": [], "variables": [], "log": "/dev/null",
                            "identity": {{"pid": {}, "start_ticks": {}, "boot": "{}"}}}}]}}"#,
        identity.pid,
        identity.start_ticks - 1,
        identity.boot
    );
    fs::create_dir_all(folder.state().parent().expect("a folder")).expect("made");
    fs::write(folder.state(), state).expect("written");
    let unreachable = folder.shell.run(&["status", "--timeout", "1s"]);
    let down = folder.shell.run(&["down"]);
    let alive = identity.is_alive();
    bystander.kill().expect("killed");
    bystander.wait().expect("reaped");
    assert!(alive, "down has killed a process that is not ours");
    golden("down_stale", &[unreachable, down]);
}

#[test]
fn what_is_not_installed_is_named() {
    let mut folder = Folder::new();
    let bare = folder.scratch.path().join("env");
    fs::create_dir_all(&bare).expect("made");
    folder.shell.set("PATH", "/nowhere");
    let no_etcd = folder.shell.run(&["up"]);
    folder.shell.host.python = Some(PathBuf::from("/usr/bin/false"));
    let no_python = folder.shell.run(&["up"]);
    golden("up_not_installed", &[no_etcd, no_python]);
}

#[test]
fn a_folder_of_another_program_is_left_alone() {
    let folder = Folder::new();
    let run = folder.scratch.path().join("state/run");
    fs::create_dir_all(&run).expect("made");
    fs::write(run.join("results"), "of another program").expect("written");
    let refused = folder.shell.run(&["up", "--memory", "64MiB"]);
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(refused.err.contains("no cluster is recorded"), "{refused:?}");
    let kept = fs::read_to_string(run.join("results")).expect("it is there");
    assert_eq!(kept, "of another program");
    assert!(!folder.state().exists(), "nothing is recorded");
}

/// A record as another user may leave it: `up` would start that program, and `env` print that address.
fn prepared(folder: &Path, address: &str) -> (PathBuf, PathBuf) {
    let (state, proof) = (folder.join("state"), folder.join("proof"));
    fs::create_dir(&state).expect("a folder");
    let process = |name: &str| {
        serde_json::json!({
            "name": name, "identity": {"pid": 999_999, "start_ticks": 1, "boot": "x"}, "program": "/bin/touch",
            "arguments": [proof], "variables": [], "log": state.join("log"),
        })
    };
    let processes = ["etcd", "master", "holder"].map(process);
    let record = serde_json::json!({
        "version": 1, "ready": true,
        "endpoints": {"etcd": address, "master": "127.0.0.1:2", "admin": "http://127.0.0.1:3", "metadata": "P2PHANDSHAKE"},
        "processes": processes,
    });
    fs::write(state.join("state.json"), record.to_string()).expect("written");
    (state, proof)
}

#[test]
fn a_record_that_another_user_may_have_written_is_not_believed() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (state, proof) = prepared(scratch.path(), "http://127.0.0.1:1");
    let file = state.join("state.json");
    let allow = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("allowed");
    let is_refused = |dir: &Path, why: &str| {
        let shell = Shell::new();
        for command in ["up", "env", "down", "status"] {
            let ran = shell.run(&[command, "--timeout", "1s", "--dir", &dir.display().to_string()]);
            let refused = ran.code != 0 && ran.err.contains("is not safe to use") && ran.err.contains(why);
            assert!(refused, "{command}: {ran:?}");
            assert!(!proof.exists(), "{command} has run their program");
        }
    };
    allow(&state, 0o777);
    is_refused(&state, "other users may write to it");
    allow(&state, 0o700);
    allow(&file, 0o666);
    is_refused(&state, "other users may write to it");
    allow(&file, 0o600);
    let link = scratch.path().join("link");
    symlink(&state, &link).expect("a link");
    is_refused(&link, "it is a link");
    // Only root can give files away.
    if chown(&state, Some(65_534), None).is_ok() {
        is_refused(&state, "it belongs to another user");
    }
}

#[test]
fn a_shell_reads_the_variables_as_they_are() {
    let scratch = tempfile::tempdir().expect("a folder");
    let proof = scratch.path().join("ran");
    let address = format!("http://127.0.0.1:1'; touch {}; echo '$HOME", proof.display());
    let (state, _) = prepared(scratch.path(), &address);
    let env = Shell::new().run(&["env", "--dir", &state.display().to_string()]);
    assert_eq!(env.code, 0, "{env:?}");
    let script = format!("{}\nprintf %s \"$TENSORHOLD_ETCD\"", env.out);
    let read = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .expect("a shell");
    assert_eq!(String::from_utf8_lossy(&read.stdout), address);
    assert!(!proof.exists(), "it ran what the record says");
}
