//! Taking a holder out: objects that move to another holder, and holders that are given nothing new.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use serde_json::{Value, json};
use tensorhold_core::{Clock, SystemClock};
use tensorhold_testkit::Cluster;

use crate::bare::{Bare, Keep, MIB, OBJECT_NOT_FOUND, REPLICA_IS_NOT_READY, TRANSFER_FAIL, soon, within};
use crate::common::{RECOVERY, WITHIN, plain};

/// Two holders, of which a test knows which process is which.
struct Two {
    cluster: Cluster,
    bare: Bare,
    /// The names of the holders of processes 0 and 1, and what replicas name.
    names: [String; 2],
    endpoints: [String; 2],
}

fn ask(cluster: &Cluster, path: &str, body: Option<&Value>) -> (u16, Value) {
    let url = format!("{}{path}", cluster.endpoints().admin[0]);
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(WITHIN))
        .build()
        .new_agent();
    let answer = match body {
        None => agent.get(url).call(),
        Some(body) => agent.post(url).send(body.to_string()),
    };
    let mut answer = answer.expect("the admin port answers");
    let text = answer.body_mut().read_to_string().expect("a whole answer");
    (
        answer.status().as_u16(),
        serde_json::from_str(&text).unwrap_or(Value::Null),
    )
}

/// The holders by name: their endpoint, status, and bytes in use.
fn segments(cluster: &Cluster) -> BTreeMap<String, (String, String, u64)> {
    let (_, detail) = ask(cluster, "/get_segments_detail", None);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = detail["segments"].as_array().expect("segments").iter().map(|one| {
        let used = one["allocator_used_bytes"].as_u64().expect("a number");
        (
            text(&one["segment_name"]),
            (text(&one["te_endpoint"]), text(&one["status"]), used),
        )
    });
    all.collect()
}

impl Two {
    fn start() -> Self {
        let cluster = plain()
            .segment_mib(64)
            .holders(2)
            .master_flag("--client_ttl=8")
            .start()
            .expect("a cluster");
        let bare = Bare::connect(&cluster);
        // The first process is the one whose ready line, and so whose log, names the holder.
        let first = cluster.holder(0).output();
        let all = segments(&cluster);
        let (mine, others): (Vec<_>, Vec<_>) = all.iter().partition(|(name, _)| first.contains(name.as_str()));
        let ([mine], [other]) = (mine.as_slice(), others.as_slice()) else {
            panic!("the holders cannot be told apart: {all:?}; {first}")
        };
        let names = [mine.0.clone(), other.0.clone()];
        let endpoints = [mine.1.0.clone(), other.1.0.clone()];
        Self {
            cluster,
            bare,
            names,
            endpoints,
        }
    }

    /// Puts an object on one of the holders.
    fn put_on(&self, holder: usize, key: &str, keep: Keep) {
        let from = self.bare.filled(MIB, 1);
        let code = self.bare.put_on(key, &from.whole(), keep, &self.names[holder]);
        assert_eq!((code, self.on(key)), (0, Ok(vec![holder])), "{key}");
    }

    /// Which holders have a key, or the master's word for what is wrong.
    fn on(&self, key: &str) -> Result<Vec<usize>, String> {
        let answer = self.bare.probe_raw(key);
        let answer = &answer[key];
        if answer["ok"] != true {
            return Err(answer["error"].as_str().unwrap_or_default().to_owned());
        }
        let of = |one: &Value| self.endpoints.iter().position(|at| *at == one["transport_endpoint_"]);
        let all = answer["values"].as_array().expect("values").iter();
        Ok(all.map(|one| of(one).expect("one of the two")).collect())
    }

    fn copy(&self, key: &str, to: usize) -> Result<Task, i64> {
        self.bare.task("create_copy_task", (key, [&self.names[to]]))
    }

    fn move_to(&self, key: &str, to: usize) -> Result<Task, i64> {
        self.bare
            .task("create_move_task", (key, &self.names[1 - to], &self.names[to]))
    }

    /// What became of a task: whether it succeeded, and the holder's message.
    fn end(&self, task: &Task) -> (bool, String) {
        within(RECOVERY, "the task ends", || match self.bare.task_status(task) {
            (status, message) if status.ends_with("SUCCESS") => Some((true, message)),
            (status, message) if status.ends_with("FAILED") => Some((false, message)),
            _ => None,
        })
    }

    fn drain(&self, holder: usize) -> (u16, Value) {
        let request = json!({"segments": [&self.names[holder]], "target_segments": [], "max_concurrency": 1});
        ask(&self.cluster, "/api/v1/drain_jobs", Some(&request))
    }

    fn status(&self, holder: usize) -> String {
        segments(&self.cluster)[&self.names[holder]].1.clone()
    }

    /// Whether a get returns the bytes that were put.
    fn reads(&self, key: &str) -> Result<bool, i64> {
        let (from, into) = (self.bare.filled(MIB, 1), self.bare.memory(MIB));
        match self.bare.get(key, &into.whole()) {
            code if code == MIB as i64 => Ok(from.whole().to_vec() == into.whole().to_vec()),
            code => Err(code),
        }
    }
}

type Task = (u64, u64);

impl Bare {
    fn put_on(&self, key: &str, from: &tensorhold_engine::Span, keep: Keep, holder: &str) -> i64 {
        Python::attach(|py| {
            let config = Self::config(py, keep, 1);
            config.setattr("preferred_segments", [holder]).expect("set");
            self.call("put_from", (key, from.address(), from.len(), config), py)
        })
    }

    fn task(&self, method: &str, args: impl for<'py> pyo3::call::PyCallArgs<'py>) -> Result<Task, i64> {
        let (task, code): (Task, i64) = Python::attach(|py| self.call(method, args, py));
        if code == 0 { Ok(task) } else { Err(code) }
    }

    fn task_status(&self, task: &Task) -> (String, String) {
        Python::attach(|py| {
            let (status, code): (Bound<'_, PyAny>, i64) = self.call("query_task", (*task,), py);
            assert_eq!(code, 0, "the master knows the task");
            let text = |name| {
                let value = status.getattr(name).and_then(|value| value.str());
                value.expect("a text").to_string()
            };
            (text("status"), text("message"))
        })
    }
}

/// A pinned object moves to another holder under its key. Readers read on meanwhile, from where it was or from where it is,
/// and a lease stops nothing. It stays pinned: full DRAM does not evict it. This is what `tensorhold drain` is made of.
#[test]
fn a_pinned_object_moves_under_its_key_while_it_is_read() {
    let two = Two::start();
    two.put_on(0, "k", Keep::Pinned);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = two.bare.spawn({
        let (stop, wanted) = (Arc::clone(&stop), two.bare.filled(MIB, 1).whole().to_vec());
        move |bare| {
            let into = bare.memory(MIB);
            let (mut good, mut bad) = (0, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                into.whole().write(0, &vec![0; MIB]).expect("fits");
                match bare.get("k", &into.whole()) {
                    code if code == MIB as i64 && into.whole().to_vec() == wanted => good += 1,
                    code => bad.push(code),
                }
            }
            (good, bad)
        }
    });
    for to in [1, 0, 1] {
        let task = two.move_to("k", to).expect("a move takes a pinned object");
        assert_eq!(two.end(&task), (true, "Task completed successfully".to_owned()));
        assert_eq!(
            two.on("k"),
            Ok(vec![to]),
            "a move used to leave one copy; revisit drain"
        );
    }
    stop.store(true, Ordering::Relaxed);
    let (good, bad) = reader.join().expect("no panic");
    println!("{good} reads while it moved");
    assert!(
        good > 0 && bad.is_empty(),
        "a read beside a move used to succeed: {bad:?}"
    );

    two.cluster.holder(0).kill().expect("killed");
    assert_eq!(two.reads("k"), Ok(true), "where it was does not matter any more");
    let page = two.bare.filled(MIB, 2);
    for n in 0..150 {
        // Codes do not matter: the holder is full, or the dead one was asked.
        two.bare.put(&format!("page{n}"), &page.whole(), Keep::Evictable);
    }
    assert_eq!(two.reads("k"), Ok(true), "a pin used to move along; revisit drain");
    assert_eq!(two.bare.remove("k", true), 0);
    assert_eq!(two.on("k"), Err("OBJECT_NOT_FOUND".to_owned()));
}

/// While an object moves, a forced remove is refused with -703 and changes nothing; a store tries it again. If the holder
/// that it goes to dies, it stays where it was; if the one that it comes from dies, it is lost as without the move.
#[test]
fn a_move_that_is_under_way_holds_up_removes_and_dies_with_its_source_only() {
    let two = Two::start();
    two.put_on(0, "k", Keep::Pinned);
    two.cluster.holder(1).stop().expect("stopped");
    let task = two.move_to("k", 1).expect("asked");
    soon("the holder has begun", || {
        (segments(&two.cluster)[&two.names[1]].2 > 0).then_some(())
    });
    assert_eq!(
        two.bare.remove("k", true),
        REPLICA_IS_NOT_READY,
        "a remove during a move used to be refused; revisit codes::remove"
    );
    assert_eq!(
        two.on("k"),
        Ok(vec![0]),
        "the copy that is being written is not told of"
    );
    assert_eq!(two.reads("k"), Ok(true));
    two.cluster.holder(1).kill().expect("killed");
    let (moved, why) = two.end(&task);
    println!("the target died: {why}");
    assert!(!moved);
    assert_eq!((two.on("k"), two.reads("k")), (Ok(vec![0]), Ok(true)));
    assert_eq!(two.bare.remove("k", true), 0, "and a remove works again");
}

/// A drain job gives a holder nothing new, and lets what is pinned lie. A second one is refused. Cancelled, the holder is
/// given new objects again.
#[test]
fn a_drain_job_closes_a_holder_and_leaves_what_is_pinned() {
    let two = Two::start();
    two.put_on(0, "pinned", Keep::Pinned);
    two.put_on(0, "page", Keep::Evictable);
    let (code, job) = two.drain(0);
    assert_eq!((code, two.status(0).as_str()), (200, "DRAINING"), "{job}");
    assert_eq!(
        two.drain(0).0,
        409,
        "a second job used to be refused; revisit admin::close"
    );
    for n in 0..20 {
        let from = two.bare.filled(MIB, 1);
        let key = format!("new{n}");
        assert_eq!(two.bare.put_on(&key, &from.whole(), Keep::Pinned, &two.names[0]), 0);
        assert_eq!(two.on(&key), Ok(vec![1]), "a closed holder used to get nothing new");
    }
    within(RECOVERY, "the job moves what is not pinned", || {
        (two.on("page") == Ok(vec![1])).then_some(())
    });
    assert_eq!(two.on("pinned"), Ok(vec![0]), "a drain job used to skip pinned objects");
    assert_eq!(two.copy("new0", 0).err(), Some(-1010), "nor is it a target");

    let id = job["job_id"].as_str().expect("a job").to_owned();
    let cancel = format!("/api/v1/drain_jobs/cancel?job_id={id}");
    soon("the job is between two objects", || {
        (ask(&two.cluster, &cancel, Some(&Value::Null)).0 == 200).then_some(())
    });
    assert_eq!(two.status(0), "OK");

    assert_eq!(two.drain(0).0, 200);
    let task = two.move_to("pinned", 1).expect("asked");
    assert!(two.end(&task).0, "out of a closed holder");
    within(RECOVERY, "the job sees that nothing is left", || {
        (two.status(0) == "DRAINED").then_some(())
    });
}

/// A copy takes a pinned object, too, but a get chooses one of the copies and asks no other: after the holder of one has
/// died, gets fail until the master gives it up. So a drain moves objects and does not copy them.
#[test]
fn a_get_does_not_fall_back_to_a_copy() {
    let two = Two::start();
    two.put_on(0, "k", Keep::Pinned);
    let task = two.copy("k", 1).expect("asked");
    assert!(two.end(&task).0);
    assert_eq!(two.on("k"), Ok(vec![0, 1]));
    two.cluster.holder(0).kill().expect("killed");
    assert_eq!(two.reads("k"), Err(TRANSFER_FAIL), "revisit why drain moves objects");
    within(
        RECOVERY,
        "the copy is found once the master has given the holder up",
        || (two.reads("k") == Ok(true)).then_some(()),
    );
    assert_eq!(two.bare.remove("k", true), 0);
    assert_eq!(two.reads("k"), Err(OBJECT_NOT_FOUND), "a remove removes all copies");
}

/// A holder fetches 16 tasks a second, whatever the size of the objects. A drain of many small ones takes its time.
#[test]
fn a_holder_moves_sixteen_objects_a_second() {
    const OBJECTS: usize = 48;
    let two = Two::start();
    for n in 0..OBJECTS {
        two.put_on(0, &format!("k{n}"), Keep::Pinned);
    }
    let clock = SystemClock::new();
    let begun = clock.now();
    for n in 0..OBJECTS {
        two.move_to(&format!("k{n}"), 1).expect("asked");
    }
    within(RECOVERY, "all have moved", || {
        (0..OBJECTS)
            .all(|n| two.on(&format!("k{n}")) == Ok(vec![1]))
            .then_some(())
    });
    let took = clock.now().since(begun);
    println!("{OBJECTS} objects moved in {took:?}");
    assert!(
        took > Duration::from_millis(1900),
        "a holder used to take 16 objects a second; {took:?} for {OBJECTS}: revisit AT_ONCE of the command's drain"
    );
}
