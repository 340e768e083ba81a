//! The index: its layout, its stores, and whether their clocks move.

use std::time::Duration;

use tensorhold_core::{Clock as _, Deadline, ErrorKind, StoreId, SystemClock};
use tensorhold_index::Index as _;

use super::Finding;
use crate::admin::Cluster;
use crate::holders::{missing, suspected};
use crate::reach::Reach;
use crate::settings::Settings;
use crate::text::{age, count, shown};

const AREA: &str = "index";
/// The most stores whose clocks are looked at.
const MOST: usize = 20;
/// How many ticks a clock may stand still.
const PATIENCE: u32 = 4;
const EVERY: Duration = Duration::from_millis(200);

pub(super) async fn probe(settings: &Settings, now_ms: u64, within: Duration) -> Vec<Finding> {
    let clock = SystemClock::new();
    let deadline = Deadline::after(&clock, within);
    let reach = match tokio::time::timeout(within, Reach::open(settings.clone(), within)).await {
        Ok(Ok(reach)) => reach,
        // The probe of etcd says it already, unless it is about what is in it.
        Ok(Err(failure)) => {
            let (kind, finding, to_do) = failure.into_parts();
            return match kind {
                ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Denied => Vec::new(),
                _ => vec![Finding::problem(AREA, finding, to_do)],
            };
        }
        Err(_) => return Vec::new(),
    };
    let known = match reach.stores().await {
        Ok(known) => known,
        Err(failure) => {
            let (_, finding, to_do) = failure.into_parts();
            return vec![Finding::problem(AREA, finding, to_do)];
        }
    };
    let root = shown(&settings.etcd.root);
    let number = u64::try_from(known.len()).unwrap_or(u64::MAX);
    let mut findings = vec![Finding::ok(
        AREA,
        format!(
            "the layout under /{root} is one that this release knows; {}",
            count(number, "store", "stores")
        ),
    )];
    let chosen: Vec<StoreId> = match &settings.store {
        Some(store) if !known.contains(store) => {
            findings.push(Finding::problem(
                AREA,
                format!("there is no store {} under /{root}", shown(store.as_str())),
                "`tensorhold status` shows the stores; a store begins with the first process that opens it",
            ));
            Vec::new()
        }
        Some(store) => vec![store.clone()],
        None => known.into_iter().take(MOST).collect(),
    };
    let looks = chosen
        .iter()
        .map(|store| look(&reach, store, deadline.remaining(&clock)));
    let (looked, holders) = tokio::join!(
        futures_util::future::join_all(looks),
        missing_holders(&reach, &chosen, now_ms, deadline.remaining(&clock))
    );
    findings.extend(looked);
    findings.extend(holders);
    findings
}

/// The holders that are missing, and the samples that may be lost with them.
async fn missing_holders(reach: &Reach, stores: &[StoreId], now_ms: u64, within: Duration) -> Vec<Finding> {
    const AREA: &str = "holders";
    const TO_DO: &str = "start it again, if it is to come back; docs/runbook.md#tensorholdholdermissing";
    let admin = reach.settings.admin.clone();
    let cluster = tokio::task::spawn_blocking(move || Cluster::ask(&admin, within)).await;
    let read = stores.iter().map(|store| async move {
        let index = reach.index(store).await.ok()?;
        let seen = index.holders_seen(within).await.ok()?;
        Some((store, seen))
    });
    // What cannot be read of a store is a finding of its own already, and so is a master that does not answer.
    let records: Vec<_> = futures_util::future::join_all(read)
        .await
        .into_iter()
        .flatten()
        .collect();
    let cluster = cluster.ok().and_then(Result::ok);
    let missing = missing(records.iter().map(|(_, seen)| seen), cluster.as_ref());
    let of_holders = missing.iter().map(|one| {
        Finding::problem(
            AREA,
            format!("{} is missing: {}", shown(&one.name), one.said(now_ms)),
            TO_DO,
        )
    });
    let of_samples = records
        .iter()
        .filter_map(|(store, seen)| Some(Finding::problem("store", suspected(store.as_str(), seen)?, TO_DO)));
    of_holders.chain(of_samples).collect()
}

async fn look(reach: &Reach, store: &StoreId, within: Duration) -> Finding {
    const AREA: &str = "store";
    let name = shown(store.as_str());
    let unknown = |why: String| Finding::problem(AREA, format!("{name}: {why}"), "`tensorhold status` says more");
    let index = match reach.index(store).await {
        Ok(index) => index,
        Err(failure) => return unknown(failure.what),
    };
    let sessions = match index.sessions(within).await {
        Ok(sessions) => u64::try_from(sessions.len()).unwrap_or(u64::MAX),
        Err(error) => return unknown(error.message().to_owned()),
    };
    if sessions == 0 {
        return Finding::note(
            AREA,
            format!("{name}: no process has it open, so its clock stands and nothing expires"),
            "if a run has ended: `tensorhold end` frees what it left; `tensorhold sweep` takes back what has expired",
        );
    }
    let have = count(sessions, "process has", "processes have");
    let tick = reach.settings.index.tick;
    let clock = SystemClock::new();
    let deadline = Deadline::after(
        &clock,
        within.min(tick.saturating_mul(PATIENCE).max(Duration::from_secs(3))),
    );
    let begun = clock.now();
    let mut first = None;
    loop {
        // Another index each time: one remembers what it has seen.
        let index = match reach.index(store).await {
            Ok(index) => index,
            Err(failure) => return unknown(failure.what),
        };
        match index.tick(within).await {
            Ok(now) => match first {
                None => first = Some(now),
                Some(before) if now != before => {
                    return Finding::ok(AREA, format!("{name}: {have} it open, and its clock moves"));
                }
                Some(_) => {}
            },
            Err(error) => return unknown(error.message().to_owned()),
        }
        if deadline.passed(&clock) {
            let stood = age(clock.now().since(begun));
            return Finding::problem(
                AREA,
                format!("{name}: {have} it open, and its clock has stood still for {stood}: nothing expires"),
                "at least one process must sweep: open a store with sweep_every (the default is 1 s)",
            );
        }
        tokio::time::sleep(EVERY).await;
    }
}
