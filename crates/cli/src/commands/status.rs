//! `status`: what the stores hold, and what the engine has. What needs a look is shown first.

use std::cmp::Reverse;

use futures_util::future::join_all;
use serde_json::Value;
use tensorhold_core::StoreId;
use tensorhold_index::{BudgetUse, Counts, Index as _, Stage};

use super::Context;
use super::record::stage_name;
use crate::admin::Cluster;
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table, to_value};
use crate::reach::Reach;
use crate::text::{bytes, count, shown};

/// The most stores that are shown; one can be named.
const MOST: usize = 50;
/// How many stores are asked about at a time.
const AT_ONCE: usize = 32;

struct StoreStatus {
    store: StoreId,
    counts: Counts,
    budget: Option<BudgetUse>,
}

pub(crate) async fn run(reach: &Reach, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Answer, Failure> {
    let admin = reach.settings.admin.clone();
    let within = reach.left() / 2;
    let engine = tokio::task::spawn_blocking(move || Cluster::ask(&admin, within));
    let all = match &reach.settings.store {
        Some(_) => vec![progress.wait("asking etcd", reach.store()).await?],
        None => progress.wait("asking etcd", reach.stores()).await?,
    };
    let looking = async {
        let mut stores = Vec::with_capacity(all.len());
        for part in all.chunks(AT_ONCE) {
            for looked in join_all(part.iter().map(|store| look(reach, store))).await {
                stores.push(looked?);
            }
        }
        Ok::<Vec<StoreStatus>, Failure>(stores)
    };
    let mut stores = progress.wait("counting records", looking).await?;
    stores.sort_by_key(StoreStatus::place);
    stores.truncate(MOST);
    let engine = progress.wait("asking the master", engine).await;
    let engine = engine.unwrap_or_else(|failure| Err(failure.to_string()));

    let value = object!("items": stores.iter().map(StoreStatus::value).collect::<Vec<_>>(),
        "next": Value::Null,
        "stores": all.len(),
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
            "{}: what is in trouble or in use is shown first, then what holds most; name one with --store\n",
            count(
                u64::try_from(all.len() - stores.len()).unwrap_or(u64::MAX),
                "store is not shown",
                "stores are not shown"
            )
        ));
    }
    text.push_str(&engine_text(engine.as_ref()));
    Ok(Answer::new(value, text))
}

async fn look(reach: &Reach, store: &StoreId) -> Result<StoreStatus, Failure> {
    let index = reach.index(store).await?;
    let (counts, budget) = tokio::join!(index.counts(reach.left()), index.budget_use(reach.left()));
    Ok(StoreStatus {
        store: store.clone(),
        counts: counts.map_err(|error| reach.failure(&error))?,
        budget: budget.map_err(|error| reach.failure(&error))?,
    })
}

impl StoreStatus {
    /// Where it is shown: those in trouble first, then those in use, of each the largest first.
    fn place(&self) -> (Reverse<bool>, Reverse<bool>, Reverse<u64>, String) {
        let is_short = |budget: &BudgetUse| budget.free == 0 && budget.bytes > 0;
        let trouble = self.counts.of(Stage::Dead) + self.counts.of(Stage::Lost) + self.counts.waiting > 0
            || self.budget.as_ref().is_some_and(is_short);
        let records = Stage::ALL.into_iter().map(|stage| self.counts.of(stage)).sum();
        let name = self.store.as_str().to_owned();
        (
            Reverse(trouble),
            Reverse(self.counts.sessions > 0),
            Reverse(records),
            name,
        )
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_shown_first_then_what_is_in_use_then_what_holds_most() {
        let of = |name: &str, sessions, records: [u64; 6]| StoreStatus {
            store: name.parse().expect("a name"),
            counts: Counts {
                records,
                sessions,
                ended_sessions: 0,
                waiting: 0,
            },
            budget: None,
        };
        let live = |count| std::array::from_fn(|at| if Stage::ALL[at] == Stage::Live { count } else { 0 });
        let dead = std::array::from_fn(|at| u64::from(Stage::ALL[at] == Stage::Dead));
        let mut stores = [
            of("a-over", 0, live(0)),
            of("b-large", 0, live(1000)),
            of("c-used", 2, live(3)),
            of("d-used", 1, live(5)),
            of("z-dead", 0, dead),
        ];
        stores.sort_by_key(StoreStatus::place);
        let names: Vec<&str> = stores.iter().map(|one| one.store.as_str()).collect();
        assert_eq!(names, ["z-dead", "d-used", "c-used", "b-large", "a-over"]);
    }
}
