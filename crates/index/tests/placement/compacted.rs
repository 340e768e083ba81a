//! A store whose cluster forgets its history while the store is copied.

use tensorhold_core::SystemRng;
use tensorhold_index::placement::{MoveStep, move_store};

use crate::clusters::{CALL, MemoryClusters};
use crate::{GROUPS, change_when_told, move_to_b, open_process, take};

const SAMPLES: usize = 100;
/// The copy of so many samples has at least four parts.
const CHANGES: usize = 3;
const CHANGED: &str = "run%2F7/changed";

#[tokio::test]
async fn a_store_is_moved_although_its_history_is_kept_for_a_shorter_time_than_the_copy_takes() {
    let clusters = MemoryClusters::new();
    let process = open_process(&clusters).await;
    for number in 0..SAMPLES {
        process.publish(&format!("s-{number}"), GROUPS).await.expect("a sample");
    }
    let home = clusters.store("home");
    // Each is applied when its client is told to.
    let mut changes = Vec::new();
    for number in 0..CHANGES {
        changes.push(change_when_told(home, CHANGED, &format!("change {number}")).await);
    }
    let mut changes = changes.into_iter();
    let mut before = None;
    let mut told = |step: MoveStep| {
        if !matches!(step, MoveStep::Copied(_)) {
            return;
        }
        // What was there at the part before is forgotten, as by a compaction at each interval.
        if let Some(version) = before {
            home.compact(version);
        }
        if let Some(client) = changes.next() {
            assert_eq!(client.land(), 1, "a change during the copy");
        }
        before = home.dump().into_iter().map(|entry| entry.version).max();
    };
    let asked = move_to_b();
    let moved = move_store(&*clusters, &asked, &*clusters.clock, &SystemRng, CALL, &mut told).await;
    let report = moved.expect("no change was missed");
    assert_eq!(changes.len(), 0, "all changes came during the copy: {report:?}");
    let copies = clusters.store("b").dump().into_iter();
    let copied: Vec<_> = copies.filter(|entry| entry.key == CHANGED).collect();
    let last = format!("change {}", CHANGES - 1);
    assert!(
        copied.len() == 1 && copied[0].value.ends_with(last.as_bytes()),
        "{copied:?}"
    );
    for _ in 0..SAMPLES {
        let grant = take(&process).await.expect("a take").expect("a sample");
        process.ack_and_free(&grant).await.expect("used up");
    }
}
