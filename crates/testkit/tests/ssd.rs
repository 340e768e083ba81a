//! The SSD tier: an object that was put gets a replica in the holder's folder, and the folder survives the holder.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::{client, get};
use tensorhold_testkit::{Cluster, poll};

#[test]
fn small_and_large_objects_get_an_ssd_replica() {
    let cluster = Cluster::builder()
        .segment_mib(128)
        .ssd(true)
        .start()
        .expect("a cluster");
    let put = "assert store.put('small', bytes(1 << 10)) == 0\nassert store.put('large', bytes(40 << 20)) == 0";
    client(&cluster, put).expect("two puts");
    let admin = &cluster.endpoints().admin[0];
    let on_ssd = |key: &str| {
        let answer = get(&format!("{admin}/batch_query_keys?keys={key}")).ok()?;
        let answer: serde_json::Value = serde_json::from_str(&answer).ok()?;
        let replicas = answer
            .pointer(&format!("/data/{key}/local_disk_values"))?
            .as_array()?
            .len();
        (replicas == 1).then_some(())
    };
    for key in ["small", "large"] {
        poll(Duration::from_secs(30), Duration::from_millis(100), || on_ssd(key))
            .unwrap_or_else(|| panic!("{key} has no replica on the SSD"));
    }

    let folder = cluster.dir().join("holder-0-ssd");
    let files = || std::fs::read_dir(&folder).expect("the folder").count();
    assert!(files() > 0);
    cluster.holder(0).restart().expect("restarted");
    assert!(files() > 0, "the same data");
}
