//! Tests of the Python module itself: its lock, a store that Python code made, settings, and a cluster with two
//! masters.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorhold_core::{Clock, ErrorKind, SystemClock};
use tensorhold_engine::{Engine, EngineExt, GetOutcome, Presence, PutOptions, PutOutcome, RemoveOutcome};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};

const BIG: usize = 256 << 20;

/// A Python thread that only counts, and the largest gap between two of its steps.
const COUNTER: &std::ffi::CStr = c"
import threading, time
class Counter:
    def __init__(self):
        self.count, self.longest_gap, self.running = 0, 0.0, True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
    def run(self):
        last = time.perf_counter()
        while self.running:
            self.count += 1
            time.sleep(0.0005)
            now = time.perf_counter()
            self.longest_gap, last = max(self.longest_gap, now - last), now
    def stop(self):
        self.running = False
        self.thread.join()
        return self.count, self.longest_gap
counter = Counter()
";

#[test]
fn python_goes_on_while_bytes_move() {
    let cluster = plain().segment_mib(512).start().expect("a cluster");
    let engine = connect(&cluster);
    let clock = SystemClock::new();
    let from = filled(&engine, BIG, 1);
    let into = engine.allocate(BIG, WITHIN).expect("memory");

    let globals = Python::attach(|py| {
        let globals = PyDict::new(py);
        py.run(COUNTER, Some(&globals), None).expect("a counting thread");
        globals.unbind()
    });
    let begin = clock.now();
    store(&engine, "big", &from);
    let outcome = engine.get_one(&key("big"), &into.whole(), WITHIN).expect("an outcome");
    let took = clock.now().since(begin);
    let (count, longest_gap): (u64, f64) = Python::attach(|py| {
        let counter = globals
            .bind(py)
            .get_item("counter")
            .expect("a dict")
            .expect("the counter");
        counter
            .call_method0("stop")
            .and_then(|answer| answer.extract())
            .expect("its figures")
    });
    assert!(matches!(outcome, GetOutcome::Loaded), "{outcome:?}");
    println!("put and get of 256 MiB took {took:?}; Python counted to {count}, longest gap {longest_gap:.4} s");
    assert!(count > 20, "Python counted to {count} only while {took:?} passed");
    assert!(
        longest_gap < took.as_secs_f64() / 2.0,
        "Python stood still for {longest_gap} s of {took:?}"
    );
}

#[test]
fn a_store_that_a_python_caller_made_is_used_and_left_open() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    // Our own client first: it puts the packages on the interpreter's path.
    let own = connect(&cluster);
    let endpoints = cluster.endpoints();
    let theirs = Python::attach(|py| {
        let store = py
            .import("mooncake.store")?
            .getattr("MooncakeDistributedStore")?
            .call0()?;
        let args = (
            "127.0.0.1",
            &endpoints.metadata,
            0,
            16 << 20,
            "tcp",
            "",
            &endpoints.master,
        );
        let code: i64 = store.call_method1("setup", args)?.extract()?;
        assert_eq!(code, 0);
        Ok::<_, PyErr>(store.unbind())
    })
    .expect("a store of their own");

    let handle = Python::attach(|py| theirs.clone_ref(py));
    let adopted = MooncakeEngine::adopt(handle, config(&endpoints)).expect("adopted");
    let from = filled(&adopted, 10_000, 1);
    store(&adopted, "adopted/object", &from);
    let into = own.allocate(10_000, WITHIN).expect("memory");
    let outcome = own
        .get_one(&key("adopted/object"), &into.whole(), WITHIN)
        .expect("an outcome");
    assert!(matches!(outcome, GetOutcome::Loaded), "{outcome:?}");
    assert_eq!(into.whole().to_vec(), from.whole().to_vec());

    drop((from, adopted));
    let code: i64 =
        Python::attach(|py| theirs.call_method1(py, "is_exist", ("adopted/object",))?.extract(py)).expect("a code");
    assert_eq!(code, 1, "the store still works after the engine around it is gone");
    Python::attach(|py| theirs.call_method0(py, "close").map(drop)).expect("closed by its owner");
}

#[test]
fn something_that_is_no_store_is_refused_per_call_and_never_panics() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let _prepares_the_interpreter = connect(&cluster);
    let not_a_store = Python::attach(|py| py.None());
    let engine = MooncakeEngine::adopt(not_a_store, config(&cluster.endpoints())).expect("taken at its word");
    let error = engine.allocate(4096, WITHIN).expect_err("None registers nothing");
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    let removal = engine.remove_one(&key("x"), WITHIN).expect_err("None removes nothing");
    assert_eq!(removal.kind(), ErrorKind::Internal, "{removal}");
    assert_eq!(engine.registrations().regions, 0);
}

#[test]
fn a_probe_says_what_it_cannot_do() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let settings = config(&cluster.endpoints());
    let blind = MooncakeEngine::connect(MooncakeConfig {
        admin: Vec::new(),
        ..settings.clone()
    })
    .expect("a client");
    assert!(!blind.capabilities().probe);
    assert_eq!(
        blind.probe_one(&key("x"), WITHIN).expect_err("no address").kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(
        blind.usage(WITHIN).expect_err("no address").kind(),
        ErrorKind::Unsupported
    );
    let tenant = MooncakeEngine::connect(MooncakeConfig {
        tenant: "other".to_owned(),
        ..settings
    })
    .expect("a client");
    assert_eq!(
        tenant.probe_one(&key("x"), WITHIN).expect_err("another tenant").kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn sixty_four_callers_on_one_engine() {
    // A read lease that outlasts sixty-four transfers on a machine that others use too.
    let lease = Duration::from_secs(60);
    let cluster = plain().segment_mib(256).lease_ttl(lease).start().expect("a cluster");
    let engine = Arc::new(connect(&cluster));
    let callers: Vec<_> = (0..64_u64)
        .map(|caller| {
            let engine = Arc::clone(&engine);
            std::thread::spawn(move || {
                let from = filled(engine.as_ref(), 256 << 10, caller);
                let into = engine.allocate(256 << 10, WITHIN).expect("memory");
                for turn in 0..8 {
                    let key = key(format!("caller/{caller}/{turn}"));
                    let put = engine
                        .put_one(&key, &from.whole(), &PutOptions::default(), WITHIN)
                        .expect("an outcome");
                    assert!(matches!(put, PutOutcome::Stored), "{key}: {put:?}");
                    let get = engine.get_one(&key, &into.whole(), WITHIN).expect("an outcome");
                    assert!(matches!(get, GetOutcome::Loaded), "{key}: {get:?}");
                    assert!(into.whole().to_vec() == from.whole().to_vec(), "{key}: wrong bytes");
                    let removed = engine.remove_one(&key, WITHIN).expect("an outcome");
                    assert!(matches!(removed, RemoveOutcome::Removed), "{key}: {removed:?}");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("no panic");
    }
    wait_until_nothing_is_registered(engine.as_ref());
    assert_eq!(engine.usage(WITHIN).expect("usage").dram_used, 0);
}

#[test]
fn a_cluster_with_two_masters_goes_on_when_the_leader_dies() {
    let cluster = plain().segment_mib(64).ha(true).start().expect("a cluster");
    let engine = connect(&cluster);
    let from = filled(&engine, 100_000, 1);
    store(&engine, "kept", &from);
    let leader = cluster.leader().expect("a leader");
    assert!(matches!(
        engine.probe_one(&key("kept"), WITHIN),
        Ok(Presence::Present { dram: 1, .. })
    ));

    cluster.master(leader).kill().expect("killed");
    let survivor = cluster
        .wait_for_leader(Duration::from_secs(60))
        .expect("another leader");
    assert_ne!(survivor, leader);
    wait_until_it_serves(&engine, "after a failover");
    assert!(
        matches!(
            engine.probe_one(&key("kept"), WITHIN),
            Ok(Presence::Present { dram: 1, .. })
        ),
        "the new leader is asked"
    );
    let into = engine.allocate(100_000, WITHIN).expect("memory");
    let outcome = engine.get_one(&key("kept"), &into.whole(), WITHIN).expect("an outcome");
    assert!(matches!(outcome, GetOutcome::Loaded), "{outcome:?}");
    assert_eq!(into.whole().to_vec(), from.whole().to_vec());
}

#[test]
fn a_release_that_was_never_tried_is_refused_unless_the_user_says_so() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let settings = config(&cluster.endpoints());
    drop(connect(&cluster)); // the installed release is a known one
    // Whatever is installed: Python looks into this folder first.
    let folder = tempfile::tempdir().expect("a folder");
    let info = folder.path().join("mooncake_transfer_engine_non_cuda-9.9.dist-info");
    std::fs::create_dir(&info).expect("a folder");
    let text = "Metadata-Version: 2.1\nName: mooncake-transfer-engine-non-cuda\nVersion: 9.9\n";
    std::fs::write(info.join("METADATA"), text).expect("written");
    Python::attach(|py| {
        let path = py.import("sys")?.getattr("path")?;
        path.call_method1("insert", (0, folder.path())).map(drop)
    })
    .expect("a path");

    let refused = MooncakeEngine::connect(settings.clone()).expect_err("nobody has tried 9.9");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert_eq!(refused.fact("release"), Some("9.9"));
    assert!(
        refused.to_string().contains("TENSORHOLD_UNTESTED_MOONCAKE=1"),
        "{refused}"
    );
    let nothing = Python::attach(|py| py.None());
    assert!(MooncakeEngine::adopt(nothing, settings.clone()).is_err());

    let engine = MooncakeEngine::connect(MooncakeConfig {
        untested_release: true,
        ..settings
    })
    .expect("at the user's own risk");
    assert_eq!(
        engine.probe_one(&key("x"), WITHIN).expect("an answer"),
        Presence::Absent
    );
}
