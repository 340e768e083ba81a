//! What a sweep costs, with ten thousand live samples and with a hundred times as many, a hundred due each time.

use anyhow::{Result, ensure};
use etcd_client::{Client, Txn, TxnOp};
use tensorhold_core::{Clock, SystemClock};
use tensorhold_custody::GroupName;
use tensorhold_index::Index;
use tensorhold_testkit::EtcdCluster;

use crate::ours::{index_of, publish};
use crate::{WITHIN, connect, median, rounded};

const DUE: usize = 100;
const FEW: usize = 10_000;
const TURNS: usize = 41;

pub(crate) async fn measure(
    many: usize,
    clock: &SystemClock,
    report: &mut serde_json::Map<String, serde_json::Value>,
) -> Result<()> {
    let etcd = EtcdCluster::start(1)?;
    let endpoints = etcd.endpoints();
    let index = index_of(connect(&endpoints, "sweep").await?, "sweep")?;
    let session = index.open_session(WITHIN).await?;
    let group = GroupName::new("trainers")?;
    publish(&index, &session, &group, 0, DUE).await?;

    let mut times = Vec::new();
    let mut filled = DUE;
    for live in [FEW, many] {
        eprintln!("sweep: filling up to {live} live samples …");
        fill(&endpoints, filled, live).await?;
        filled = live;
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            // A session that takes a hundred samples and dies.
            let dying = index.open_session(WITHIN).await?;
            let mut held = 0;
            while held < DUE {
                let more = index.lease_next(&dying, &group, DUE - held, 600, WITHIN).await?;
                ensure!(!more.is_empty(), "samples are missing");
                held += more.len();
            }
            dying.close(WITHIN).await?;
            let begin = clock.now();
            let swept = index.sweep(&session, 1_000, WITHIN).await?;
            turns.push(clock.now().since(begin).as_secs_f64() * 1e3);
            ensure!(swept.taken_back == DUE && swept.looked_at == DUE, "{swept:?}");
            index.sweep(&session, 1_000, WITHIN).await?;
        }
        let time = median(&mut turns);
        eprintln!("sweep of {DUE} due among {live} live: {time:.2} ms");
        times.push(time);
    }
    report.insert("sweep_ms_10k".into(), rounded(times[0]).into());
    report.insert("sweep_ms_many".into(), rounded(times[1]).into());
    report.insert("sweep_live".into(), many.into());
    report.insert("sweep_growth".into(), rounded(times[1] / times[0]).into());
    Ok(())
}

/// Live samples as the index has them, written in bulk: a record with its description, and a ready entry of another group.
async fn fill(endpoints: &[String], from: usize, to: usize) -> Result<()> {
    let client = Client::connect(endpoints, None).await?;
    let record = r#"{"generation":1,"nonce":7,"producer":1,"bytes":4194304,"readers":[],"retain":false,"max_attempts":9,
        "groups":[{"group":"others","attempts":0,"progress":"Waiting"}]}"#;
    let live = [record.as_bytes(), &[0], &crate::ours::DESCRIPTION].concat();
    let mut tasks = Vec::new();
    for worker in 0..8 {
        let (mut client, live) = (client.clone(), live.clone());
        tasks.push(tokio::spawn(async move {
            let mine: Vec<usize> = (from..to).skip(worker).step_by(8).collect();
            for chunk in mine.chunks(60) {
                let mut writes = Vec::with_capacity(2 * chunk.len());
                for n in chunk {
                    let ready = format!("/sweep/sweep/q/others/{:02x}/{n:016x}/live-{n:09}", n % 32);
                    writes.push(TxnOp::put(format!("/sweep/sweep/s/live-{n:09}"), live.as_slice(), None));
                    writes.push(TxnOp::put(ready, live.as_slice(), None));
                }
                client.txn(Txn::new().and_then(writes)).await?;
            }
            Ok::<_, etcd_client::Error>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}
