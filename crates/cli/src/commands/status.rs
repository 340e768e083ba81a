//! `status`: what the stores hold, and what the engine has.

use futures_util::future::join_all;
use serde_json::Value;
use tensorhold_core::StoreId;
use tensorhold_index::{BudgetUse, Counts, HoldersSeen, Index as _, Stage};

use super::Context;
use super::record::stage_name;
use crate::admin::Cluster;
use crate::failure::Failure;
use crate::holders::{Missing, missing, suspected};
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table, to_value};
use crate::reach::Reach;
use crate::text::{bytes, count, shown};

/// The most stores that are shown; one can be named.
const MOST: usize = 50;

struct StoreStatus {
    store: StoreId,
    counts: Counts,
    budget: Option<BudgetUse>,
    holders: HoldersSeen,
}

pub(crate) async fn run(reach: &Reach, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Answer, Failure> {
    let admin = reach.settings.admin.clone();
    let within = reach.left() / 2;
    let engine = tokio::task::spawn_blocking(move || Cluster::ask(&admin, within));
    let all = match &reach.settings.store {
        Some(_) => vec![progress.wait("asking etcd", reach.store()).await?],
        None => progress.wait("asking etcd", reach.stores()).await?,
    };
    let shown_stores = all.iter().take(MOST).map(|store| look(reach, store));
    let stores = progress.wait("counting records", join_all(shown_stores)).await;
    let stores: Vec<StoreStatus> = stores.into_iter().collect::<Result<_, Failure>>()?;
    let engine = progress.wait("asking the master", engine).await;
    let engine = engine.unwrap_or_else(|failure| Err(failure.to_string()));

    let missing = missing(stores.iter().map(|one| &one.holders), engine.as_ref().ok());
    let value = object!("items": stores.iter().map(StoreStatus::value).collect::<Vec<_>>(),
        "next": Value::Null,
        "stores": all.len(),
        "missing_holders": missing.iter().map(Missing::value).collect::<Vec<_>>(),
        "engine": engine_value(engine.as_ref()),);
    let mut text = match stores.is_empty() {
        true => format!(
            "the index in etcd at {} has no store yet\n",
            reach.settings.etcd_shown()
        ),
        false => text(&stores, context),
    };
    if all.len() > stores.len() {
        text.push_str(&format!(
            "{} more stores are not shown; name one with --store\n",
            all.len() - stores.len()
        ));
    }
    text.push_str(&engine_text(engine.as_ref()));
    missing.iter().for_each(|one| text.push_str(&one.line(context.now_ms)));
    let suspected = stores
        .iter()
        .filter_map(|one| suspected(one.store.as_str(), &one.holders));
    suspected.for_each(|line| text.extend([line.as_str(), "\n"]));
    Ok(Answer::new(value, text))
}

async fn look(reach: &Reach, store: &StoreId) -> Result<StoreStatus, Failure> {
    let index = reach.index(store).await?;
    let (counts, budget, holders) = tokio::join!(
        index.counts(reach.left()),
        index.budget_use(reach.left()),
        index.holders_seen(reach.left())
    );
    Ok(StoreStatus {
        store: store.clone(),
        counts: counts.map_err(|error| reach.failure(&error))?,
        budget: budget.map_err(|error| reach.failure(&error))?,
        holders: holders.map_err(|error| reach.failure(&error))?,
    })
}

impl StoreStatus {
    fn value(&self) -> Value {
        let samples: serde_json::Map<String, Value> = Stage::ALL
            .into_iter()
            .map(|stage| (stage_name(stage).to_owned(), to_value(&(self.counts.of(stage)))))
            .collect();
        object!("store": self.store.as_str(),
            "samples": samples,
            "sessions": self.counts.sessions,
            "ended_sessions": self.counts.ended_sessions,
            "waiting_producers": self.counts.waiting,
            "suspected": self.holders.suspected,
            "budget": self.budget.as_ref().map(|budget| object!("bytes": budget.bytes, "free_bytes": budget.free, "used_bytes": budget.bytes.saturating_sub(budget.free),)),)
    }
}

fn text(stores: &[StoreStatus], context: &Context<'_>) -> String {
    let columns = [
        "store", "live", "reserved", "retired", "to free", "lost", "dead", "sessions", "waiting", "budget",
    ];
    let mut rows = table(context.output, &columns);
    for one in stores {
        let of = |stage| number(one.counts.of(stage));
        let budget = match &one.budget {
            Some(budget) => {
                format!(
                    "{} of {} used",
                    bytes(budget.bytes.saturating_sub(budget.free)),
                    bytes(budget.bytes)
                )
            }
            None => "none".to_owned(),
        };
        rows.add_row([
            shown(one.store.as_str()).into(),
            of(Stage::Live),
            of(Stage::Reserved),
            of(Stage::Retired),
            of(Stage::ToFree),
            of(Stage::Lost),
            of(Stage::Dead),
            number(one.counts.sessions),
            number(one.counts.waiting),
            budget.into(),
        ]);
    }
    let mut text = draw(&rows);
    let ended: u64 = stores.iter().map(|one| one.counts.ended_sessions).sum();
    if ended > 0 {
        text.push_str(&format!(
            "\n{} ended and {} not cleared up after: any process's sweep does it, or `tensorhold sweep`\n",
            count(ended, "session has", "sessions have"),
            if ended == 1 { "is" } else { "are" }
        ));
    }
    text
}

fn engine_value(engine: Result<&Cluster, &String>) -> Value {
    match engine {
        Ok(cluster) => object!("reachable": true,
            "holders": cluster.segments.len(),
            "dram_used_bytes": cluster.used(),
            "dram_capacity_bytes": cluster.capacity(),
            "ssd_used_bytes": cluster.metric("master_allocated_file_size_bytes"),
            "ssd_capacity_bytes": cluster.metric("master_total_file_capacity_bytes"),
            "objects": cluster.metric("master_key_count"),),
        Err(why) => object!("reachable": false, "why": why),
    }
}

fn engine_text(engine: Result<&Cluster, &String>) -> String {
    match engine {
        Ok(cluster) => {
            let holders = u64::try_from(cluster.segments.len()).unwrap_or(u64::MAX);
            let ssd = match cluster.metric("master_total_file_capacity_bytes") {
                Some(capacity) if capacity > 0 => {
                    let used = cluster.metric("master_allocated_file_size_bytes").unwrap_or(0);
                    format!("; SSD: {} of {} used", bytes(used), bytes(capacity))
                }
                _ => String::new(),
            };
            format!(
                "\nengine: {}, {} of {} used{ssd}; {}\n",
                count(holders, "holder", "holders"),
                bytes(cluster.used()),
                bytes(cluster.capacity()),
                count(cluster.metric("master_key_count").unwrap_or(0), "object", "objects"),
            )
        }
        Err(why) => format!(
            "\nengine: unknown, the master's admin port does not answer ({})\n",
            shown(why)
        ),
    }
}
