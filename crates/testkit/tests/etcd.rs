//! etcd alone: it keeps what it acknowledged over a kill, and three nodes go on without one.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::time::Duration;

use anyhow::Result;
use tensorhold_testkit::{EtcdCluster, poll};

const SOON: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_millis(50);
const KEY: &str = "a2V5"; // "key" in base64, as etcd's JSON gateway wants it
const VALUE: &str = "dmFsdWU="; // "value"

fn ask(endpoint: &str, call: &str, body: &str) -> Result<String> {
    let config = ureq::config::Config::builder()
        .timeout_global(Some(Duration::from_secs(2)))
        .build();
    let request = ureq::Agent::from(config).post(format!("{endpoint}/v3/kv/{call}"));
    Ok(request
        .content_type("application/json")
        .send(body)?
        .body_mut()
        .read_to_string()?)
}

fn put(endpoint: &str) -> Result<String> {
    ask(endpoint, "put", &format!(r#"{{"key":"{KEY}","value":"{VALUE}"}}"#))
}

/// Reads the data of this one node, without asking the others.
fn has_value(endpoint: &str) -> bool {
    let body = format!(r#"{{"key":"{KEY}","serializable":true}}"#);
    ask(endpoint, "range", &body).is_ok_and(|answer| answer.contains(VALUE))
}

#[test]
fn one_node_keeps_its_data_over_a_kill() {
    let etcd = EtcdCluster::start(1).expect("etcd");
    let endpoint = &etcd.endpoints()[0];
    put(endpoint).expect("a put");
    assert_eq!(etcd.leader().expect("a leader"), 0);
    etcd.node(0).kill().expect("killed");
    etcd.leader().expect_err("nobody leads");
    etcd.node(0).restart().expect("restarted");
    assert!(has_value(endpoint));
}

#[test]
fn three_nodes_elect_a_new_leader_and_the_old_one_rejoins() {
    let etcd = EtcdCluster::start(3).expect("etcd");
    let old = etcd.leader().expect("a leader");
    etcd.node(old).kill().expect("killed");
    let new = etcd.wait_for_leader(SOON).expect("a new leader");
    assert_ne!(new, old);
    poll(SOON, EVERY, || put(&etcd.endpoints()[new]).ok()).expect("writes go on");
    etcd.node(old).restart().expect("restarted");
    poll(SOON, EVERY, || has_value(&etcd.endpoints()[old]).then_some(())).expect("it caught up");
}

#[test]
fn a_whole_cluster_comes_back_together() {
    let etcd = EtcdCluster::start(3).expect("etcd");
    put(&etcd.endpoints()[0]).expect("a put");
    (0..3).for_each(|index| etcd.node(index).kill().expect("killed"));
    (0..3).for_each(|index| etcd.node(index).relaunch().expect("launched"));
    (0..3).for_each(|index| {
        etcd.node(index)
            .wait_ready()
            .expect("ready, as there is a majority again")
    });
    assert!((0..3).all(|index| has_value(&etcd.endpoints()[index])));
}

#[test]
fn two_nodes_are_refused() {
    let error = EtcdCluster::start(2).expect_err("no majority in two");
    assert!(error.to_string().contains("1 or 3"));
}
