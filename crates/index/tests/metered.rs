//! What the calls of an index look like in the metrics of its process.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Nonce, SampleId, SeededRng, StoreId, SystemClock};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::{Index, IndexConfig, Reserve, TxnIndex};
use tensorhold_metrics::registry;

const WITHIN: Duration = Duration::from_secs(10);

fn value(series: &str) -> u64 {
    let text = registry().text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().expect("a count"))
}

fn reads(cause: &str) -> u64 {
    value(&format!(
        r#"tensorhold_index_reads_total{{store="metered",kind="range",cause="{cause}"}}"#
    ))
}

#[tokio::test]
async fn reads_are_counted_by_what_they_are_for_and_transactions_by_outcome() {
    let clock = Arc::new(SystemClock::new());
    let txn_store = MemoryStore::new(clock.clone());
    let store = StoreId::new("metered").expect("a name");
    let rng = Arc::new(SeededRng::new(1));
    let config = IndexConfig::default();
    let index = TxnIndex::new(Arc::new(txn_store), &store, config, clock, rng);
    let session = index.open_session(WITHIN).await.expect("a session");
    assert_eq!((reads("sweep"), reads("collect")), (0, 0));

    index.to_free(None, 10, WITHIN).await.expect("a list");
    assert_eq!(reads("sweep"), 0);
    let collected = reads("collect");
    assert!(collected > 0, "{}", registry().text());
    let others = reads("other");
    index.sweep(&session, 10, WITHIN).await.expect("swept");
    assert!(reads("sweep") > 0, "{}", registry().text());
    assert_eq!((reads("collect"), reads("other")), (collected, others));

    let transactions = |outcome: &str| {
        value(&format!(
            r#"tensorhold_index_call_seconds_count{{store="metered",call="transact",outcome="{outcome}"}}"#
        ))
    };
    let (applied, rejected) = (transactions("ok"), transactions("rejected"));
    let wish = |nonce| Reserve {
        sample: SampleId::new("a").expect("a name"),
        nonce: Nonce::from_u64(nonce),
        bytes: 1,
        plan: String::new(),
        claims: Vec::new(),
    };
    index
        .reserve(&session, &[wish(1)], WITHIN)
        .await
        .pop()
        .expect("one")
        .expect("reserved");
    assert_eq!((transactions("ok"), transactions("rejected")), (applied + 1, rejected));
    // The second one expects that there is none, and decides anew when it learns that there is.
    index
        .reserve(&session, &[wish(2)], WITHIN)
        .await
        .pop()
        .expect("one")
        .expect_err("there is one");
    assert_eq!(
        (transactions("ok"), transactions("rejected")),
        (applied + 1, rejected + 1),
        "{}",
        registry().text()
    );
}
