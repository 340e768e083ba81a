//! Mooncake's master: its RPC port, its admin port, the holders behind it, and SSD.

use std::time::Duration;

use super::Finding;
use crate::admin::{Cluster, connects, master_addresses};
use crate::settings::Settings;
use crate::text::{age, bytes, count, shown};

const AREA: &str = "master";

pub(super) async fn probe(settings: &Settings, within: Duration) -> Vec<Finding> {
    let addresses = master_addresses(&settings.master);
    let rpc = addresses.into_iter().map(|address| async move {
        let asked = address.clone();
        let tried = tokio::task::spawn_blocking(move || connects(&asked, within)).await;
        (address, tried.unwrap_or_else(|failure| Err(failure.to_string())))
    });
    let admin = settings.admin.clone();
    let asking = tokio::task::spawn_blocking(move || Cluster::ask(&admin, within));
    let (rpc, cluster) = tokio::join!(futures_util::future::join_all(rpc), asking);
    let mut findings: Vec<Finding> = rpc
        .into_iter()
        .map(|(address, tried)| match tried {
            Ok(took) => Finding::ok(
                AREA,
                format!("{} takes connections (in {})", shown(&address), age(took)),
            ),
            Err(why) => Finding::problem(
                AREA,
                format!("{} takes no connection: {why}", shown(&address)),
                settings.advice_if_unreachable("--master, or TENSORHOLD_MASTER"),
            ),
        })
        .collect();
    match cluster.unwrap_or_else(|failure| Err(failure.to_string())) {
        Ok(cluster) => findings.extend(judge(settings, &cluster)),
        Err(why) => findings.push(Finding::problem(
            AREA,
            format!("its admin port ({}) does not answer: {why}", shown(&settings.admin.join(", "))),
            "name the master's HTTP port (its flag --metrics_port): --admin, or TENSORHOLD_ADMIN; without it no store opens",
        )),
    }
    findings
}

fn judge(settings: &Settings, cluster: &Cluster) -> Vec<Finding> {
    let holders = u64::try_from(cluster.segments.len()).unwrap_or(u64::MAX);
    let (used, capacity) = (cluster.used(), cluster.capacity());
    let mut findings = vec![Finding::ok(
        AREA,
        format!("{} answers as the leader", shown(&cluster.address)),
    )];
    let lend = format!("{} of {} used", bytes(used), bytes(capacity));
    findings.push(match (holders, used) {
        (0, _) => Finding::problem(
            "holders",
            "no process lends memory to the cluster: every put fails",
            format!(
                "start holders: mooncake_client --master_server_address={} --metadata_server=P2PHANDSHAKE \
                 --global_segment_size=32GB",
                shown(&settings.master)
            ),
        ),
        (_, used) if used > capacity / 10 * 9 => Finding::note(
            "holders",
            format!("{} nearly full: {lend}", count(holders, "holder is", "holders are")),
            "set a budget below the capacity (`tensorhold budget set`), so that producers wait and puts do not fail",
        ),
        _ => Finding::ok("holders", format!("{}, {lend}", count(holders, "holder", "holders"))),
    });
    let ssd = cluster.metric("master_total_file_capacity_bytes").unwrap_or(0);
    let ssd_used = cluster.metric("master_allocated_file_size_bytes").unwrap_or(0);
    findings.push(match (settings.residency.as_str(), ssd) {
        ("spill", 0) => Finding::problem(
            "ssd",
            "samples may lie on SSD (residency spill), and no holder has an SSD folder: puts would wait for ever",
            "docs/ssd.md has the flags of the master and the variables of holders",
        ),
        (_, 0) => Finding::ok("ssd", "no SSD tier, and none is asked for"),
        (_, ssd) => Finding::ok("ssd", format!("{} of {} used", bytes(ssd_used), bytes(ssd))),
    });
    let evicted = cluster.metric("master_evicted_key_count").unwrap_or(0);
    if evicted > 0 && ssd == 0 {
        findings.push(Finding::note(
            AREA,
            format!(
                "it has evicted {}; samples are pinned and stay, KV pages and foreign objects go",
                count(evicted, "object", "objects")
            ),
            "more memory, or a smaller budget, if that is not wanted",
        ));
    }
    let refused = cluster.metric("master_put_start_alloc_failures_total").unwrap_or(0);
    if refused > 0 {
        findings.push(Finding::note(
            AREA,
            format!(
                "it has refused {} for want of memory since it was started",
                count(refused, "put", "puts")
            ),
            "set a budget below the capacity (`tensorhold budget set`), so that producers wait instead",
        ));
    }
    findings.push(Finding::note(
        AREA,
        "its flags cannot be asked for over HTTP",
        "compare them with docs/engine.md and, for SSD, docs/ssd.md",
    ));
    findings
}
