//! High availability: the standby takes over from a killed leader and knows its objects; the killed one rejoins.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::{client, get};
use tensorhold_testkit::{Cluster, poll};

#[test]
fn the_standby_takes_over_from_a_killed_leader() {
    let cluster = Cluster::builder().segment_mib(64).ha(true).start().expect("a cluster");
    assert!(cluster.endpoints().master.starts_with("etcd://"));
    client(&cluster, "assert store.put('k', b'bytes') == 0").expect("a put");
    let old = cluster.leader().expect("a leader");
    let other = 1 - old;
    cluster.master(old).kill().expect("killed");
    assert_eq!(
        cluster.wait_for_leader(Duration::from_secs(60)).expect("a new leader"),
        other
    );
    client(&cluster, "until(lambda: store.get('k') == b'bytes')").expect("the object survived");

    cluster.master(old).restart().expect("restarted");
    let role = format!("{}/role", cluster.endpoints().admin[old]);
    let standby = || get(&role).ok().filter(|role| role.contains("standby"));
    poll(Duration::from_secs(30), Duration::from_millis(100), standby).expect("the old leader stands by");
    assert_eq!(cluster.leader().expect("a leader"), other);
}

#[test]
fn masters_and_clients_use_all_three_etcd_nodes() {
    let cluster = Cluster::builder()
        .segment_mib(64)
        .ha(true)
        .etcd_nodes(3)
        .start()
        .expect("a cluster");
    assert_eq!(cluster.endpoints().etcd.len(), 3);
    cluster
        .etcd(cluster.etcd_leader().expect("a leader"))
        .kill()
        .expect("killed");
    client(
        &cluster,
        "until(lambda: store.put('k', b'x') == 0)\nuntil(lambda: store.get('k') == b'x')",
    )
    .expect("a client can come and work with two of three etcd nodes");
}
