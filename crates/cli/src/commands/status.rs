//! `status`: what the stores hold, and what the engine has. What needs a look is shown first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde_json::Value;
use tensorhold_core::{Error, ErrorKind, StoreId, Timestamp};
use tensorhold_index::{Backlog, BudgetUse, Counts, HoldersSeen, Index as _, Office, Stage};
use tensorhold_index_etcd::storage;
use tensorhold_steward::attention::{self, Attention, Seen};
use tensorhold_steward::recent::{Before, Recent};
use tensorhold_steward::report::{EtcdReport, MOST_QUARANTINED};

use super::Context;
use super::record::stage_name;
use crate::admin::Cluster;
use crate::failure::Failure;
use crate::holders::{Missing, missing, suspected};
use crate::io::Progress;
use crate::output::{Answer, fitted, number, object, table, to_value};
use crate::reach::Reach;
use crate::text::{ago, bytes, count, shown};

/// The most stores that are shown; one can be named.
const MOST: usize = 50;
/// How many stores are asked about at a time.
const AT_ONCE: usize = 32;
/// The most groups of a store that are shown.
const MOST_GROUPS: usize = 20;
/// The part of etcd's quota from which on it is near it, where a node says what its quota is.
const WARN_FULL: f64 = 0.7;

/// Samples by stage, and those that wait for each group: of each store.
pub(super) type Figures = BTreeMap<StoreId, ([u64; 6], BTreeMap<String, u64>)>;

struct StoreStatus {
    store: StoreId,
    counts: Counts,
    budget: Option<BudgetUse>,
    holders: HoldersSeen,
    backlog: Vec<Backlog>,
    quarantined: usize,
    /// Whether any process holds an office.
    swept: bool,
}

pub(crate) async fn run(reach: &Reach, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Answer, Failure> {
    look_and_compare(reach, context, None, progress).await
}

/// As [`run`]; with what was seen lately, the text also says how fast figures change.
pub(super) async fn look_and_compare(
    reach: &Reach,
    context: &Context<'_>,
    recent: Option<&mut Recent<Figures>>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let admin = reach.settings.admin.clone();
    let within = reach.left() / 2;
    let engine = tokio::task::spawn_blocking(move || Cluster::ask(&admin, within));
    let etcd = storage(&reach.settings.etcd, within);
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
    let looks = async { tokio::join!(looking, etcd) };
    let (stores, etcd) = progress.wait("counting records", looks).await;
    let mut stores = stores?;
    stores.sort_by_cached_key(StoreStatus::rank);
    stores.truncate(MOST);
    let engine = progress.wait("asking the master", engine).await;
    let engine = engine.unwrap_or_else(|failure| Err(failure.to_string()));

    let missing = missing(stores.iter().map(|one| &one.holders), engine.as_ref().ok());
    let nodes = reach.settings.etcd.endpoints.iter().zip(etcd);
    let nodes: Vec<EtcdReport> = nodes.filter_map(|(at, node)| etcd_report(at, node)).collect();
    let mut attention = attention::of_etcd(&nodes, WARN_FULL);
    attention.extend(stores.iter().flat_map(StoreStatus::attention));
    attention.sort_by_key(|one| one.level);
    let figures: Figures = stores.iter().map(|one| (one.store.clone(), one.figures())).collect();
    let before = recent.and_then(|recent| recent.saw(now(reach), figures));

    let value = object!("items": stores.iter().map(StoreStatus::value).collect::<Vec<_>>(),
        "next": Value::Null,
        "stores": all.len(),
        "missing_holders": missing.iter().map(Missing::value).collect::<Vec<_>>(),
        "attention": attention,
        "engine": engine_value(engine.as_ref()),);
    let mut text = match stores.is_empty() {
        true => format!(
            "the index in etcd at {} has no store yet\n",
            reach.settings.etcd_shown()
        ),
        false => text(&stores, before.as_ref(), context),
    };
    if all.len() > stores.len() {
        text.push_str(&format!(
            "{}: what needs attention or is in use is shown first, then what holds most; name one with --store\n",
            count(
                u64::try_from(all.len() - stores.len()).unwrap_or(u64::MAX),
                "store is not shown",
                "stores are not shown"
            )
        ));
    }
    text.push_str(&engine_text(engine.as_ref()));
    missing.iter().for_each(|one| text.push_str(&one.line(context.now_ms)));
    let suspected = stores
        .iter()
        .filter_map(|one| suspected(one.store.as_str(), &one.holders));
    suspected.for_each(|line| text.extend([line.as_str(), "\n"]));
    text.push_str(&attention_text(&attention));
    Ok(Answer::new(value, text))
}

fn now(reach: &Reach) -> Timestamp {
    reach.clock.now()
}

async fn look(reach: &Reach, store: &StoreId) -> Result<StoreStatus, Failure> {
    let index = reach.index(store).await?;
    let left = reach.left();
    let (counts, budget, backlog, quarantined, leaders, holders) = tokio::join!(
        index.counts(left),
        index.budget_use(left),
        index.backlog(MOST_GROUPS, left),
        index.quarantined(None, MOST_QUARANTINED, left),
        index.leaders(left),
        index.holders_seen(left),
    );
    let failed = |error: Error| reach.failure(&error);
    let leaders = leaders.map_err(failed)?;
    Ok(StoreStatus {
        store: store.clone(),
        counts: counts.map_err(failed)?,
        budget: budget.map_err(failed)?,
        backlog: backlog.map_err(failed)?,
        quarantined: quarantined.map_err(failed)?.len(),
        swept: Office::ALL.into_iter().any(|office| leaders.of(office).is_some()),
        holders: holders.map_err(failed)?,
    })
}

/// What a node of etcd says; nothing if we are not let ask.
fn etcd_report(endpoint: &str, node: tensorhold_core::Result<tensorhold_index_etcd::Storage>) -> Option<EtcdReport> {
    match node {
        // A quota that the node does not tell is not known.
        Ok(storage) => Some(EtcdReport::of(storage, 0)),
        Err(error) => matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout).then(|| EtcdReport {
            endpoint: endpoint.to_owned(),
            trouble: Some(error.message().to_owned()),
            ..EtcdReport::default()
        }),
    }
}

impl StoreStatus {
    /// Where it is shown: those that need attention first, then those in use, of each the largest first.
    fn rank(&self) -> (Reverse<bool>, Reverse<bool>, Reverse<u64>, String) {
        let records = Stage::ALL.into_iter().map(|stage| self.counts.of(stage)).sum();
        (
            Reverse(!self.attention().is_empty()),
            Reverse(self.counts.sessions > 0),
            Reverse(records),
            self.store.as_str().to_owned(),
        )
    }

    fn attention(&self) -> Vec<Attention> {
        let of = |budget: &BudgetUse| (budget.bytes, budget.free, budget.waiting.len() as u64);
        let seen = Seen {
            lost: self.counts.of(Stage::Lost),
            dead: self.counts.of(Stage::Dead),
            quarantined: self.quarantined as u64,
            budget: self.budget.as_ref().map(of),
            unswept: self.counts.sessions > 0 && !self.swept,
        };
        attention::of_store(self.store.as_str(), &seen)
    }

    fn figures(&self) -> ([u64; 6], BTreeMap<String, u64>) {
        let waiting = self
            .backlog
            .iter()
            .map(|one| (one.group.as_str().to_owned(), one.waiting));
        (self.counts.records, waiting.collect())
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
            "suspected": self.holders.suspected,
            "backlog": self.backlog.iter().map(|one| object!("group": one.group.as_str(), "waiting": one.waiting, "oldest_ms": one.oldest.map(|at| at.0),)).collect::<Vec<_>>(),
            "budget": self.budget.as_ref().map(|budget| object!("bytes": budget.bytes, "free_bytes": budget.free, "used_bytes": budget.bytes.saturating_sub(budget.free),)),)
    }
}

fn text(stores: &[StoreStatus], before: Option<&Before<'_, Figures>>, context: &Context<'_>) -> String {
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
        // What was not seen before has no change.
        let was = before.and_then(|before| Some((before, before.seen.get(&one.store)?.0)));
        if let Some((before, was)) = was {
            let samples = |at: usize| per_second(before, was[at], one.counts.records[at]);
            // In the order of the columns, not of the stages.
            let [reserved, live, retired, to_free, lost, dead] = std::array::from_fn(samples);
            let changes = [live, reserved, retired, to_free, lost, dead];
            rows.add_row(std::iter::once("  change".into()).chain(changes.map(number)));
        }
    }
    let mut text = fitted(&rows, context.output);
    text.push_str(&backlog_text(stores, before, context));
    let ended: u64 = stores.iter().map(|one| one.counts.ended_sessions).sum();
    if ended > 0 {
        text.push_str(&format!(
            "\n{} ended: the next sweep of a process or steward takes back what may be left, or `tensorhold sweep` now\n",
            count(ended, "session has", "sessions have")
        ));
    }
    text
}

fn backlog_text(stores: &[StoreStatus], before: Option<&Before<'_, Figures>>, context: &Context<'_>) -> String {
    let mut columns = vec!["store", "group", "waiting", "oldest"];
    columns.extend(before.map(|_| "change"));
    let mut rows = table(context.output, &columns);
    for one in stores {
        let was = before.and_then(|before| Some((before, &before.seen.get(&one.store)?.1)));
        for backlog in &one.backlog {
            let mut row = vec![
                shown(one.store.as_str()).into(),
                shown(backlog.group.as_str()).into(),
                number(backlog.waiting),
                ago(backlog.oldest.map_or(0, |at| at.0), context.now_ms).into(),
            ];
            row.extend(was.map(|(before, was)| {
                let was = was.get(backlog.group.as_str()).copied().unwrap_or(0);
                number(per_second(before, was, backlog.waiting))
            }));
            rows.add_row(row);
        }
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", fitted(&rows, context.output)),
    }
}

/// How much more there is of something, a second.
fn per_second(before: &Before<'_, Figures>, was: u64, now: u64) -> String {
    let change = before.per_second(was, now);
    match change.abs() {
        size if size < 0.005 => "±0".to_owned(),
        size if size < 10.0 => format!("{change:+.2}/s"),
        _ => format!("{change:+.0}/s"),
    }
}

fn attention_text(attention: &[Attention]) -> String {
    if attention.is_empty() {
        return String::new();
    }
    let mut text = "\nneeds attention:\n".to_owned();
    for one in attention {
        let store = one.store.as_ref().map(|store| format!("store {}: ", shown(store)));
        let (store, what) = (store.unwrap_or_default(), shown(&one.what));
        text.push_str(&format!("  {}: {store}{what} ({})\n", one.level, one.runbook));
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
            holders: HoldersSeen::default(),
            backlog: Vec::new(),
            quarantined: 0,
            swept: true,
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
        stores.sort_by_cached_key(StoreStatus::rank);
        let names: Vec<&str> = stores.iter().map(|one| one.store.as_str()).collect();
        assert_eq!(names, ["z-dead", "d-used", "c-used", "b-large", "a-over"]);
    }
}
