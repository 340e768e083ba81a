//! The plain cluster: it serves, and each of its processes can be killed, stopped, resumed and restarted.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{client, get};
use tensorhold_testkit::{Cluster, ClusterBuilder, poll};

const SOON: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_millis(50);

fn small() -> ClusterBuilder {
    Cluster::builder().segment_mib(64)
}

#[test]
fn serves_a_put_and_a_get() {
    let cluster = small().start().expect("a cluster");
    let script = "assert store.put('k', b'bytes') == 0\nassert store.get('k') == b'bytes'";
    client(&cluster, script).expect("a round trip");
    assert_eq!(cluster.leader().expect("the only master leads"), 0);
    assert!(cluster.logs().contains("===== holder-0"));
}

#[test]
fn serves_without_a_metadata_server() {
    let cluster = small().p2p_metadata(true).start().expect("a cluster");
    assert_eq!(cluster.endpoints().metadata, "P2PHANDSHAKE");
    let script = "assert store.put('k', b'bytes') == 0\nassert store.get('k') == b'bytes'";
    client(&cluster, script).expect("a round trip");
}

#[test]
fn a_killed_holder_comes_back() {
    // A short client_ttl makes the master forget the dead one soon.
    let cluster = small()
        .holders(2)
        .master_flag("--client_ttl=2")
        .start()
        .expect("a cluster");
    let segments = || get(&format!("{}/get_all_segments", cluster.endpoints().admin[0])).map(|all| all.lines().count());
    assert_eq!(segments().expect("an answer"), 2);
    let holder = cluster.holder(0);
    let first = holder.identity();
    holder.kill().expect("killed");
    assert!(!holder.is_running());
    assert!(!first.is_alive());
    holder.kill().expect("killing the dead is fine");
    holder.stop().expect_err("the dead cannot be stopped");
    poll(SOON, EVERY, || segments().is_ok_and(|count| count == 1).then_some(())).expect("the master forgets it");

    holder.restart().expect("restarted");
    assert!(holder.is_running());
    assert_ne!(holder.identity(), first);
    assert_eq!(segments().expect("an answer"), 2);
}

#[test]
fn a_holder_can_leave_in_good_order() {
    let cluster = small().start().expect("a cluster");
    cluster
        .holder(0)
        .finish(Duration::from_secs(60))
        .expect("it ends by itself");
    assert_eq!(
        get(&format!("{}/get_all_segments", cluster.endpoints().admin[0]))
            .expect("an answer")
            .trim(),
        ""
    );
}

#[test]
fn a_stopped_master_is_deaf_until_resumed() {
    let cluster = small().holders(0).start().expect("a cluster");
    let health = format!("{}/health", cluster.endpoints().admin[0]);
    cluster.master(0).stop().expect("stopped");
    assert!(cluster.master(0).is_running(), "it is there");
    get(&health).expect_err("but answers nobody");
    cluster.leader().expect_err("and leads nobody");
    cluster.master(0).resume().expect("resumed");
    poll(SOON, EVERY, || get(&health).ok()).expect("it answers again");
}

#[test]
fn a_stopped_process_can_be_killed() {
    let cluster = small().holders(0).start().expect("a cluster");
    cluster.master(0).stop().expect("stopped");
    cluster.master(0).kill().expect("killed");
    assert!(!cluster.master(0).is_running());
}

#[test]
fn a_master_restarts_on_its_ports_and_its_holders_find_it() {
    let cluster = small().start().expect("a cluster");
    let before = (cluster.endpoints(), cluster.master(0).pid());
    client(&cluster, "assert store.put('before', b'x') == 0").expect("a put");
    for _ in 0..3 {
        cluster.master(0).restart().expect("restarted");
    }
    assert_eq!(cluster.endpoints(), before.0);
    assert_ne!(cluster.master(0).pid(), before.1);
    client(
        &cluster,
        "until(lambda: store.put('after', b'x') == 0)\nuntil(lambda: store.get('after') == b'x')",
    )
    .expect("the holder has mounted its segment again");
}

#[test]
fn two_clusters_live_side_by_side() {
    let start = || std::thread::spawn(|| small().etcd_nodes(1).start().expect("a cluster"));
    let (one, two) = (start(), start());
    let (one, two) = (one.join().expect("started"), two.join().expect("started"));
    let addresses = [&one, &two].map(|cluster| {
        let all = cluster.endpoints();
        [all.admin, all.etcd, vec![all.master, all.metadata]]
            .concat()
            .into_iter()
            .collect::<BTreeSet<_>>()
    });
    assert!(addresses[0].is_disjoint(&addresses[1]), "{addresses:?}");
    client(&one, "assert store.put('k', b'x') == 0").expect("a put");
    client(&two, "assert store.is_exist('k') == 0").expect("the other cluster knows nothing of it");
}

#[test]
fn a_start_that_cannot_work_says_why() {
    let error = small()
        .master_flag("--no_such_flag=1")
        .start()
        .expect_err("the master refuses");
    let message = format!("{error:#}");
    assert!(message.contains("master-0 ended before it was ready"), "{message}");
    assert!(message.contains("no_such_flag"), "{message}");
}

#[test]
fn a_master_waits_for_its_own_port_when_restarted() {
    let cluster = small().holders(0).start().expect("a cluster");
    let address = cluster.endpoints().master;
    cluster.master(0).kill().expect("killed");
    let squatter = std::net::TcpListener::bind(&address).expect("its port is free now");
    std::thread::scope(|scope| {
        let restarted = scope.spawn(|| cluster.master(0).restart());
        let mut pids = BTreeSet::from([cluster.master(0).pid()]);
        let tried_again = || {
            pids.insert(cluster.master(0).pid());
            (pids.len() >= 3).then_some(())
        };
        poll(SOON, EVERY, tried_again).expect("it is launched again and again");
        drop(squatter);
        restarted
            .join()
            .expect("no panic")
            .expect("and gets its port in the end");
    });
    assert_eq!(cluster.leader().expect("a leader"), 0);
}
