//! Every command that looks at a store or changes one, on a real master, a holder and an etcd, with samples in every
//! state.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Shell, golden};
use tensorhold_cli::embedded;
use tensorhold_core::{Clock, DType, Nonce, SystemClock, SystemRng, TensorSpec};
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Lease, Publication, PutItem, Stored, TensorIn};
use tensorhold_index::placement::NewStore;
use tensorhold_index::{Identity, Index, IndexConfig, Reserve, TxnIndex};
use tensorhold_index_etcd::{EtcdClusters, EtcdConfig, EtcdStore, open_store};
use tensorhold_testkit::{Cluster, Endpoints};

const WITHIN: Duration = Duration::from_secs(20);

fn start(holders: usize) -> Cluster {
    Cluster::builder()
        .p2p_metadata(true)
        .holders(holders)
        .segment_mib(64)
        .etcd_nodes(1)
        .start()
        .expect("a cluster")
}

fn shell(endpoints: &Endpoints) -> Shell {
    let mut shell = Shell::at(endpoints);
    shell.host.connect = Some(Arc::new(embedded::connect));
    shell.set("TENSORHOLD_INDEX_DEAD_TICKS", "600");
    shell
}

/// The bytes of dead letters are kept.
fn index_config() -> IndexConfig {
    IndexConfig {
        dead_ticks: 600,
        ..IndexConfig::default()
    }
}

/// A process of the store, apart from the command.
struct Process {
    store: FeatureStore,
    index: Arc<TxnIndex>,
}

impl Process {
    async fn open(endpoints: &Endpoints, role: &str, sweep_every: Option<Duration>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let config = EtcdConfig::new(endpoints.etcd.clone());
        let etcd = EtcdStore::open(config.clone(), Arc::clone(&clock), WITHIN)
            .await
            .expect("etcd");
        let clusters = Arc::new(EtcdClusters::new(etcd, config, Arc::clone(&clock)));
        let name = "run-7".parse().expect("a name");
        let rng = Arc::new(SystemRng);
        let opened = open_store(clusters, &name, NewStore::Begins, rng.clone(), WITHIN).await;
        let index = TxnIndex::new(
            opened.expect("the store"),
            &name,
            index_config(),
            Arc::clone(&clock),
            rng.clone(),
        );
        let index = Arc::new(index.with_identity(Identity {
            program: "train.py".to_owned(),
            host: "node-1".to_owned(),
            pid: 4711,
            ..Identity::of_this_process(role)
        }));
        let settings = format!(
            r#"{{"master": "{}", "admin": ["{}"], "metadata": "{}",
                "environment": {{"MC_LOG_LEVEL": "ERROR", "MC_TCP_BIND_ADDRESS": "127.0.0.1"}}}}"#,
            endpoints.master, endpoints.admin[0], endpoints.metadata
        );
        let engine = tokio::task::block_in_place(|| embedded::connect(&settings, WITHIN)).expect("an engine");
        let config = FeatureConfig {
            sweep_every,
            ..FeatureConfig::new(name)
        };
        let shared: Arc<dyn Index> = index.clone();
        let store = FeatureStore::open(engine, shared, config, clock, rng)
            .await
            .expect("a store");
        Self { store, index }
    }

    async fn put(&self, sample: &str, groups: &[&str], max_attempts: u32) -> Stored {
        let spec = TensorSpec::new("hidden".parse().expect("a name"), DType::Uint8, [4096]).expect("a spec");
        let memory = self.store.pool().buffer(4096, WITHIN).await.expect("memory");
        memory.write(0, &[7; 4096]).expect("filled");
        let item = PutItem {
            sample: sample.parse().expect("a name"),
            tensors: vec![TensorIn::new(spec, memory)],
            publication: Publication {
                groups: groups
                    .iter()
                    .map(|name| GroupName::new(*name).expect("a name"))
                    .collect(),
                retain: false,
                max_attempts,
            },
        };
        self.store.put(item, WITHIN).await.expect("put")
    }

    async fn take(&self, group: &str, stored: &Stored) -> Lease {
        let group = GroupName::new(group).expect("a name");
        let mut leases = self
            .store
            .lease(&group, std::slice::from_ref(&stored.reference), WITHIN)
            .await;
        leases.remove(0).expect("a lease")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_samples_in_every_state() {
    let cluster = tokio::task::block_in_place(|| start(1));
    let endpoints = cluster.endpoints();
    let shell = shell(&endpoints);
    let process = Process::open(&endpoints, "trainer-3", None).await;
    process.index.set_budget(1 << 20, WITHIN).await.expect("a budget");

    process.put("waits", &["trainers", "eval"], 3).await;
    let leased = process.put("leased", &["trainers"], 3).await;
    let lease = process.take("trainers", &leased).await;
    process.put("for nobody", &[], 3).await;
    process.put("\u{202e}enemy", &["trainers"], 3).await;
    let read = process.put("read", &["trainers"], 3).await;
    let mut readers = process
        .store
        .lease_shared(std::slice::from_ref(&read.reference), WITHIN)
        .await;
    let reader = readers.remove(0).expect("a reader");
    let to_ack = process.take("trainers", &read).await;
    process.store.ack(&[to_ack], WITHIN).await.remove(0).expect("acked");
    for name in ["dead", "dropped"] {
        let stored = process.put(name, &["trainers"], 1).await;
        let lease = process.take("trainers", &stored).await;
        process
            .store
            .nack(&[lease], WITHIN)
            .await
            .remove(0)
            .expect("handed back");
    }
    let session = process.index.open_session(WITHIN).await.expect("a session");
    let reservation = Reserve {
        sample: "written".parse().expect("a name"),
        nonce: Nonce::from_u64(1),
        bytes: 1000,
        plan: r#"{"v":1,"tensors":[["hidden",1]]}"#.to_owned(),
        claims: Vec::new(),
    };
    process
        .index
        .reserve(&session, &[reservation], WITHIN)
        .await
        .remove(0)
        .expect("reserved");

    golden("status", &[shell.run(&["status"]), shell.run(&["status", "--json"])]);
    golden(
        "ls",
        &[
            shell.run(&["ls"]),
            shell.run(&["ls", "--state", "live", "--limit", "2"]),
        ],
    );
    golden(
        "ls_narrow",
        &[
            shell.run(&["ls", "--group", "eval"]),
            shell.run(&["ls", "--older-than", "1d"]),
            shell.run(&["ls", "--session", &format!("{:x}", session.id().0)]),
        ],
    );
    golden("ls_json", &[shell.run(&["ls", "--state", "retired", "--json"])]);
    paged(&shell, &["ls"]);
    golden(
        "sessions",
        &[shell.run(&["sessions"]), shell.run(&["sessions", "--json"])],
    );
    golden("budget", &[shell.run(&["budget"]), shell.run(&["budget", "--json"])]);

    let key = shell.json(&["why", "leased"])["items"][0]["objects"]["items"][0]["key"]
        .as_str()
        .expect("a key")
        .to_owned();
    let why = ["waits", "leased", "for nobody", "read", "dead", "written"].map(|name| shell.run(&["why", name]));
    golden("why", &why);
    let by_key = shell.run(&["why", &key]);
    assert!(by_key.code == 0 && by_key.out.starts_with("leased g"), "{by_key:?}");
    golden("why_json", &[shell.run(&["why", "leased", "--json"])]);
    golden("why_unknown", &[shell.run(&["why", "no such sample"])]);

    golden(
        "dead",
        &[shell.run(&["dead", "ls"]), shell.run(&["dead", "show", "dead"])],
    );
    let drop = shell.run(&["dead", "drop", "dropped"]);
    golden(
        "dead_changed",
        &[
            shell.run(&["dead", "requeue", "dead"]),
            drop,
            shell.run(&["dead", "requeue", "waits"]),
        ],
    );
    let again = shell.json(&["why", "dead"]);
    assert_eq!(again["items"][0]["state"], "live", "{again}");

    golden("end_refused", &[shell.run(&["end"])]);
    process.store.release(&[lease, reader], WITHIN).await;
    golden("rm", &[shell.run(&["rm", "waits", "gone"])]);
    session.close(WITHIN).await.expect("closed");
    process.store.close(WITHIN).await.expect("closed");
    golden("sweep", &[shell.run(&["sweep"])]);
    golden("end", &[shell.run(&["end"]), shell.run(&["status"])]);
}

/// Pages together are the whole list, whatever their length. Returns how many items that has.
fn paged(shell: &Shell, list: &[&str]) -> usize {
    let whole = shell.json(&[list, &["--limit", "1000"]].concat());
    let (mut found, mut place) = (Vec::new(), None::<String>);
    loop {
        let mut arguments = [list, &["--limit", "2"]].concat();
        if let Some(place) = &place {
            arguments.extend(["--after", place]);
        }
        let page = shell.json(&arguments);
        found.extend(page["items"].as_array().expect("items").clone());
        match page["next"].as_str() {
            Some(next) => place = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(&found, whole["items"].as_array().expect("items"));
    found.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_cannot_be_decoded() {
    let cluster = tokio::task::block_in_place(|| start(1));
    let endpoints = cluster.endpoints();
    let shell = shell(&endpoints);
    let process = Process::open(&endpoints, "trainer", None).await;
    process.put("good", &["trainers"], 3).await;
    let etcd = cluster.etcd_cluster().expect("an etcd");
    etcd.etcdctl(&["put", "/tensorhold/run-7/s/bad", "\u{1b}[2Jno record"])
        .expect("written");
    // The first command that meets it moves it into quarantine.
    let listed = shell.run(&["ls", "--state", "live"]);
    let ran = [
        listed,
        shell.run(&["quarantine", "ls"]),
        shell.run(&["quarantine", "show", "run-7/s/bad"]),
        shell.run(&["quarantine", "show", "run-7/s/bad", "--json"]),
    ];
    golden("quarantine", &ran);
    for key in ["bad-2", "bad-3"] {
        let key = format!("/tensorhold/run-7/s/{key}");
        etcd.etcdctl(&["put", &key, "nor is this"]).expect("written");
    }
    shell.run(&["ls", "--state", "live"]);
    assert_eq!(paged(&shell, &["quarantine", "ls"]), 3);
    let wrong = shell.run(&["quarantine", "ls", "--after", "somewhere"]);
    assert!(
        wrong.code == 2 && wrong.err.contains("no place in the quarantine"),
        "{wrong:?}"
    );
    process.store.close(WITHIN).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_what_is_wrong() {
    let cluster = tokio::task::block_in_place(|| start(1));
    let endpoints = cluster.endpoints();
    let shell = shell(&endpoints);
    let sweeping = Process::open(&endpoints, "trainer", Some(Duration::from_millis(500))).await;
    let well = shell.run(&["doctor"]);
    assert_eq!(well.code, 0, "{well:?}");
    golden("doctor", &[well]);
    sweeping.store.close(WITHIN).await.expect("closed");

    let idle = Process::open(&endpoints, "trainer", None).await;
    let stands = shell.run(&["doctor"]);
    assert!(
        stands.code == 1 && stands.out.contains("its clock has stood still"),
        "{stands:?}"
    );
    idle.store.close(WITHIN).await.expect("closed");

    tokio::task::block_in_place(|| cluster.master(0).kill()).expect("killed");
    let dead = shell.run(&["doctor", "--json"]);
    assert_eq!(dead.code, 1);
    let dead: serde_json::Value = serde_json::from_str(&dead.out).expect("JSON");
    let problems: Vec<&str> = dead["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter(|finding| finding["level"] == "problem")
        .map(|finding| finding["area"].as_str().expect("an area"))
        .collect();
    assert_eq!(problems, ["master", "master"], "{dead}");
    golden("master_dead", &[shell.run(&["sweep"]), shell.run(&["status"])]);
}

#[test]
fn a_cluster_without_holders() {
    let cluster = start(0);
    let shell = shell(&cluster.endpoints());
    let doctor = shell.run(&["doctor"]);
    assert!(
        doctor.code == 1 && doctor.out.contains("no process lends memory"),
        "{doctor:?}"
    );
}
