//! The failure table: what a command says when something is not as it should be. On a real etcd.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::{Shell, golden};
use tensorhold_testkit::EtcdCluster;

fn shell(etcd: &EtcdCluster) -> Shell {
    let mut shell = Shell::new();
    shell.set("TENSORHOLD_ETCD", &etcd.endpoints().join(","));
    shell
}

#[test]
fn what_is_wrong_with_the_command_line_or_the_settings() {
    let mut shell = Shell::new();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |text: &str| {
        let path = folder.path().join(format!("{}.toml", text.len()));
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let mut ran = vec![
        shell.run(&["lss"]),
        shell.run(&["budget", "set", "much"]),
        shell.run(&["ls", "--limit", "0"]),
        shell.run(&["sessions", "--config", &file("etcdd = 1")]),
        shell.run(&["sessions", "--config", &file("store = 'run'\netcd = ")]),
        shell.run(&["sessions", "--config", &file("[index]\ntick = 'often'")]),
        shell.run(&["sessions", "--config", "/nowhere/tensorhold.toml"]),
        shell.run(&["sessions", "--etcd", "127.0.0.1:2379"]),
        shell.run(&["sessions", "--store", ""]),
        shell.run(&["top", "--every", "often"]),
    ];
    shell.set("TENSORHOLD_CHECKSUM", "sometimes");
    ran.push(shell.run(&["sessions"]));
    shell.set("TENSORHOLD_CHECKSUM", "");
    shell.set("TENSORHOLD_ETCD", "http://127.0.0.1:1");
    shell.set("TENSORHOLD_ETCD_USER", "me");
    ran.push(shell.run(&["sessions"]));
    assert!(ran.iter().all(|ran| ran.code == 2), "{ran:?}");
    golden("usage", &ran);
}

#[test]
fn every_setting_is_shown_with_its_source() {
    let mut shell = Shell::new();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tensorhold.toml");
    let login = "[etcd_options]\nuser = 'u'\npassword = 'file:/password'\n";
    let text = format!("etcd = 'https://etcd:2379'\n{login}[[steward.stores]]\nstore = 's'\n");
    std::fs::write(&file, text).expect("written");
    shell.set("TENSORHOLD_CONFIG", &file.display().to_string());
    shell.set("TENSORHOLD_INDEX_TICK", "200ms");
    shell.set("TENSORHOLD_KEY", "hunter2");
    shell.set("TENSORHOLD_INDEX_TIK", "1s");
    let ran = shell.run(&["settings", "--master", "here:1"]);
    assert!(ran.code == 0 && !ran.out.contains("hunter2"), "{ran:?}");
    golden("settings", &[ran]);

    let value = shell.json(&["settings", "--master", "here:1"]);
    let of = |path: &str| {
        let items = value["items"].as_array().expect("items");
        items.iter().find(|item| item["setting"] == path).expect(path).clone()
    };
    assert_eq!(
        (&of("index.tick")["value"], &of("index.tick")["from"]),
        (&0.2.into(), &"TENSORHOLD_INDEX_TICK".into())
    );
    assert_eq!(of("etcd_options.password")["from"], "file:4");
    assert_eq!(of("key")["value"], "env:TENSORHOLD_KEY");
    assert_eq!(
        (&of("master")["from"], &of("pool_bytes")["from"]),
        (&"flag".into(), &"default".into())
    );
    assert_eq!(of("admin")["value"][0], "http://here:9003");
    assert_eq!(value["unknown_variables"][0], "TENSORHOLD_INDEX_TIK");
}

#[test]
fn nobody_answers() {
    let shell = Shell::new();
    let refused = |arguments: &[&str]| {
        let ran = shell.run(&[arguments, &["--etcd", "http://127.0.0.1:1", "--timeout", "1s"]].concat());
        assert_eq!(ran.code, 3, "{ran:?}");
        ran
    };
    let json = refused(&["sessions", "--json"]);
    golden(
        "unreachable",
        &[refused(&["sessions"]), refused(&["restore-guard", "--yes"]), json],
    );
    golden("unreachable_default", &[shell.run(&["sessions", "--timeout", "1s"])]);
    let doctor = shell.run(&[
        "doctor",
        "--etcd",
        "http://127.0.0.1:1",
        "--master",
        "127.0.0.1:2",
        "--timeout",
        "1s",
    ]);
    assert_eq!(doctor.code, 1);
}

#[test]
fn what_is_not_there_and_what_cannot_be_done_from_here() {
    let etcd = EtcdCluster::start(1).expect("an etcd");
    let shell = shell(&etcd);
    let empty = [
        shell.run(&["sessions"]),
        shell.run(&["status"]),
        shell.run(&["budget", "--store", "a"]),
    ];
    golden("no_store", &empty);
    let set = shell.run(&["budget", "set", "1.5GiB", "--store", "a"]);
    let ran = [
        set,
        shell.run(&["budget"]),
        shell.run(&["status"]),
        shell.run(&["sessions"]),
        shell.run(&["sessions", "--store", "b"]),
        shell.run(&["ls"]),
        shell.run(&["ls", "--state", "gone"]),
        shell.run(&["ls", "--session", "xyz"]),
        shell.run(&["why", "sample-1"]),
        shell.run(&["dead", "ls"]),
        shell.run(&["dead", "show", "sample-1"]),
        shell.run(&["dead", "requeue", "sample-1"]),
        shell.run(&["quarantine", "ls"]),
        shell.run(&["quarantine", "show", "a/s/x"]),
        shell.run(&["sweep"]),
        shell.run(&["audit"]),
        shell.run(&["end"]),
        shell.run(&["rm", "sample-1"]),
        shell.run(&["restore-guard"]),
        shell.run(&["restore-guard", "--yes"]),
    ];
    golden("not_there", &ran);
    assert_eq!(shell.run(&["budget", "set", "1GiB", "--store", "b"]).code, 0);
    golden("which_store", &[shell.run(&["sessions"])]);
}

#[test]
fn an_index_of_a_newer_release_and_one_that_is_none() {
    let etcd = EtcdCluster::start(1).expect("an etcd");
    etcd.etcdctl(&["put", "/newer/schema", "99"]).expect("written");
    etcd.etcdctl(&["put", "/other/schema", "\u{1b}[2Jhello"])
        .expect("written");
    let mut shell = shell(&etcd);
    let mut ran = Vec::new();
    for root in ["newer", "other"] {
        shell.set("TENSORHOLD_ETCD_ROOT", root);
        ran.push(shell.run(&["sessions"]));
    }
    assert_eq!(ran.iter().map(|ran| ran.code).collect::<Vec<_>>(), [4, 5]);
    shell.set("TENSORHOLD_ETCD_ROOT", "newer");
    let doctor = shell.run(&["doctor"]);
    assert!(
        doctor.code == 1 && doctor.out.contains("newer Tensorhold"),
        "{doctor:?}"
    );
    golden("newer_release", &ran);
}

#[test]
fn wrong_credentials() {
    let etcd = EtcdCluster::start(1).expect("an etcd");
    for line in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "reader:readers"],
        &["role", "add", "nothing"],
        &["user", "grant-role", "reader", "nothing"],
        &["auth", "enable"],
    ] {
        etcd.etcdctl(line).unwrap_or_else(|error| panic!("{line:?}: {error:#}"));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let with = |login: Option<(&str, &str)>, arguments: &[&str]| {
        let mut shell = shell(&etcd);
        shell.set("TENSORHOLD_ETCD_ALLOW_PLAIN_PASSWORD", "1");
        if let Some((user, password)) = login {
            let reference = if password.starts_with("file:") {
                password.to_owned()
            } else {
                let file = folder.path().join(password);
                std::fs::write(&file, password).expect("written");
                format!("file:{}", file.display())
            };
            shell.set("TENSORHOLD_ETCD_USER", user);
            shell.set("TENSORHOLD_ETCD_PASSWORD", &reference);
        }
        shell.run(&[arguments, &["--timeout", "2s"]].concat())
    };
    let ran = [
        with(None, &["sessions"]),
        with(Some(("root", "wrong-password")), &["sessions"]),
        with(Some(("reader", "readers")), &["sessions"]),
        with(Some(("root", "file:/nowhere/password")), &["sessions"]),
    ];
    let mut transcripts = String::new();
    for ran in &ran {
        transcripts.push_str(&ran.err);
        assert!(matches!(ran.code, 2 | 4), "{ran:?}");
    }
    assert!(
        !transcripts.contains("wrong-password") && !transcripts.contains("readers\""),
        "{transcripts}"
    );
    golden("credentials", &ran);
    let doctor = with(Some(("root", "wrong-password")), &["doctor"]);
    assert!(
        doctor.code == 1 && doctor.out.contains("does not let us in"),
        "{doctor:?}"
    );
    let good = with(Some(("root", "secret")), &["status"]);
    assert_eq!(good.code, 0, "{good:?}");
}

#[test]
fn completions_and_manual_pages() {
    let shell = Shell::new();
    let bash = shell.run(&["completions", "bash"]);
    assert!(bash.code == 0 && bash.out.contains("restore-guard"), "{bash:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let man = shell.run(&["man", &folder.path().display().to_string()]);
    assert_eq!(man.code, 0, "{man:?}");
    let page = std::fs::read_to_string(folder.path().join("tensorhold-dead-requeue.1")).expect("a page");
    assert!(page.contains("out of attempts"), "{page}");
    golden(
        "help",
        &[
            shell.run(&["--help"]),
            shell.run(&["ls", "--help"]),
            shell.run(&["--version"]),
        ],
    );
}

#[test]
fn colours_and_progress_are_for_terminals() {
    let mut shell = Shell::new();
    let doctor = [
        "doctor",
        "--etcd",
        "http://127.0.0.1:1",
        "--master",
        "127.0.0.1:2",
        "--timeout",
        "1s",
    ];
    let sessions = ["sessions", "--etcd", "http://127.0.0.1:1", "--timeout", "2s"];
    assert!(!shell.run(&doctor).out.contains('\u{1b}') && !shell.run(&sessions).err.contains('\u{1b}'));
    shell.terminal = true;
    assert!(shell.run(&doctor).out.contains("\u{1b}["), "colours");
    let waited = shell.run(&sessions).err;
    assert!(waited.contains("asking etcd (1 s)"), "{waited:?}");
    let (_, last) = waited.rsplit_once("\r\u{1b}[2K").expect("the line is cleared");
    assert!(last.starts_with("\u{1b}[31merror:"), "{last:?}");
    shell.set("NO_COLOR", "1");
    assert!(!shell.run(&doctor).out.contains('\u{1b}'));
    assert!(!shell.run(&sessions).err.contains("\u{1b}[31m"));
}
