//! What the page shows: everything that is known, as one text for each set of stores that a token is for.
//!
//! ```text
//!  looks, sweeps, etcd ──▶ changed ──▶ the next request has the text made; all others get the same one
//! ```
//! So a hundred viewers cost no more than one. A text that is the same as the one before keeps its number, and is not sent
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use tensorhold_core::{Error, Result, StoreId};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attention::{self, Attention};
use crate::options::default_warn_free;
use crate::report::{
    Action, CompactionReport, EtcdReport, LeaderReport, MissingReport, Report, SessionReport, StoreReport, TakenBack,
};
use crate::state::State;
use crate::view::history::{History, HistoryReport, Point};
use crate::view::{SHOWN, View};

/// The part of the engine's memory from which on it is called high: Mooncake evicts from 0.95 on.
const HIGH: f64 = 0.9;

/// For how long a list of sessions is told again without asking etcd.
const FRESH: Duration = Duration::from_secs(10);

/// Who may see what: the names of the stores, or none for everything.
pub(crate) type Audience = Option<Vec<String>>;

/// One text.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Changes with the text.
    pub(crate) id: u64,
    /// As JSON.
    pub(crate) json: Bytes,
    /// As an event of a stream.
    pub(crate) event: Bytes,
    /// What was known when it was made.
    of: u64,
}

/// The sessions of a store, and when they were listed.
type Listed = (Instant, Arc<Vec<SessionReport>>);

/// The views of all stores, how many viewers there are, and the texts.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// How many watch now.
    viewers: watch::Sender<usize>,
    /// Grows with every change.
    changed: watch::Sender<u64>,
    stores: RwLock<BTreeMap<String, (View, History)>>,
    /// The sessions of each store in the order of their ids, and when they were listed.
    sessions: RwLock<BTreeMap<String, Listed>>,
    frames: Mutex<BTreeMap<Audience, Arc<Frame>>>,
}

/// A viewer of the page. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Viewer(Arc<State>);

impl Viewer {
    pub(crate) fn new(state: Arc<State>) -> Self {
        state.page.viewers.send_modify(|viewers| *viewers += 1);
        Self(state)
    }

    pub(crate) fn state(&self) -> &State {
        &self.0
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.page.viewers.send_modify(|viewers| *viewers -= 1);
    }
}

impl Shown {
    pub(crate) fn viewers(&self) -> watch::Receiver<usize> {
        self.viewers.subscribe()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Something has changed.
    pub(crate) fn touch(&self) {
        self.changed.send_modify(|changed| *changed += 1);
    }

    /// Takes in what was seen of a store.
    pub(crate) fn saw(&self, store: &StoreId, view: View, point: Option<Point>) {
        let mut stores = self.stores.write();
        let entry = stores.entry(store.as_str().to_owned()).or_default();
        if let Some(point) = point {
            entry.1.push(point);
        }
        entry.0 = view;
        entry.0.point_ms = entry.1.latest_ms();
        drop(stores);
        self.touch();
    }

    /// A store is looked at no more for now, so nothing is known of the engine by it.
    pub(crate) fn rests(&self, store: &StoreId) {
        if let Some((view, _)) = self.stores.write().get_mut(store.as_str()) {
            view.engine = None;
            view.holders.clear();
        }
        self.touch();
    }

    /// There is no such store any more.
    pub(crate) fn forget(&self, store: &StoreId) {
        self.stores.write().remove(store.as_str());
        self.sessions.write().remove(store.as_str());
        self.touch();
    }

    /// Takes in the sessions of a store.
    pub(crate) fn saw_sessions(&self, store: &StoreId, mut sessions: Vec<SessionReport>) {
        sessions.sort_by(|one, two| one.session.cmp(&two.session));
        let entry = (Instant::now(), Arc::new(sessions));
        self.sessions.write().insert(store.as_str().to_owned(), entry);
    }

    /// The sessions of a store, if they were listed a moment ago: while a viewer is there they are.
    pub(crate) fn sessions(&self, store: &str) -> Option<Arc<Vec<SessionReport>>> {
        let sessions = self.sessions.read();
        let (listed, sessions) = sessions.get(store)?;
        (listed.elapsed() < FRESH).then(|| Arc::clone(sessions))
    }

    /// What a store held after a time.
    pub(crate) fn history(&self, store: &str, after_ms: u64) -> HistoryReport {
        let stores = self.stores.read();
        let history = stores.get(store).map(|(_, history)| history.after(after_ms));
        history.unwrap_or_else(|| History::default().after(0))
    }
}

/// What takes up something that is limited.
#[derive(Serialize)]
struct Pressure {
    what: String,
    used: u64,
    of: u64,
    /// `fine`, `high` or `full`.
    level: &'static str,
}

#[expect(clippy::cast_precision_loss, reason = "a part of the whole")]
fn pressure(what: impl Into<String>, used: u64, of: u64, high: f64, is_full: bool) -> Pressure {
    let level = match used as f64 >= high * of as f64 {
        _ if is_full || used >= of => "full",
        true => "high",
        false => "fine",
    };
    Pressure {
        what: what.into(),
        used,
        of,
        level,
    }
}

#[derive(Serialize)]
struct Overview<'a> {
    version: &'static str,
    read_only: bool,
    /// Whether no part of the steward has ended by a defect.
    whole: bool,
    look_every_ms: u64,
    /// What an operator should see to.
    attention: Vec<Attention>,
    stores: Vec<StoreOverview<'a>>,
    /// For a token for all stores.
    etcd: Option<EtcdOverview<'a>>,
}

#[derive(Serialize)]
struct EtcdOverview<'a> {
    nodes: &'a [EtcdReport],
    pressure: Vec<Pressure>,
    compaction: Option<&'a CompactionReport>,
}

#[derive(Serialize)]
struct StoreOverview<'a> {
    store: &'a str,
    open: bool,
    idle: bool,
    trouble: Option<&'a str>,
    on_duty: bool,
    steward: Option<&'a LeaderReport>,
    sweepers: &'a [LeaderReport],
    users: Option<u64>,
    taken_back: TakenBack,
    freed: u64,
    failed_frees: u64,
    /// The latest first.
    actions: Vec<&'a Action>,
    pressure: Vec<Pressure>,
    /// Samples that miss an object since a holder has gone.
    suspected: u64,
    /// Told to everybody: their samples may be lost.
    missing_holders: &'a [MissingReport],
    #[serde(flatten)]
    view: View,
}

impl State {
    /// What the page shows to this audience.
    pub(crate) fn frame(&self, audience: &Audience) -> Result<Arc<Frame>> {
        let mut frames = self.page.frames.lock();
        let of = *self.page.changed.borrow();
        let before = frames.get(audience);
        if let Some(frame) = before.filter(|frame| frame.of == of) {
            return Ok(Arc::clone(frame));
        }
        let json = self.overview(audience)?;
        let frame = match before {
            Some(before) if before.json == json => Frame {
                id: before.id,
                json: before.json.clone(),
                event: before.event.clone(),
                of,
            },
            _ => Frame {
                id: of,
                event: [b"event: overview\ndata: ", json.as_slice(), b"\n\n"].concat().into(),
                json: json.into(),
                of,
            },
        };
        let frame = Arc::new(frame);
        frames.insert(audience.clone(), Arc::clone(&frame));
        Ok(frame)
    }

    fn overview(&self, audience: &Audience) -> Result<Vec<u8>> {
        let report: Report = self.report();
        let views = self.page.stores.read();
        let is_seen = |name: &str| {
            audience
                .as_ref()
                .is_none_or(|names| names.iter().any(|one| one == name))
        };
        let stores = report.stores.iter().filter(|(name, _)| is_seen(name));
        let mut attention = Vec::new();
        if audience.is_none() {
            let warn_full = self.options.etcd.as_ref().map_or(1.0, |etcd| etcd.warn_full);
            attention.extend(attention::of_etcd(&report.etcd, warn_full));
        }
        attention.extend(
            stores
                .clone()
                .flat_map(|(name, report)| attention::of_report(name, report)),
        );
        // What is critical in any store comes first.
        attention.sort_by_key(|one| one.level);
        let stores = stores.map(|(name, report)| {
            let mut view = views.get(name).map(|(view, _)| view.clone()).unwrap_or_default();
            if audience.is_some() {
                // They are the engine's, whose memory all stores share.
                view.holders.clear();
                view.engine = None;
            }
            self.store_overview(name, report, view)
        });
        let overview = Overview {
            version: env!("CARGO_PKG_VERSION"),
            read_only: report.read_only,
            whole: self.is_whole(),
            look_every_ms: u64::try_from(self.options.look_every.as_millis()).unwrap_or(u64::MAX),
            attention,
            stores: stores.collect(),
            etcd: audience.is_none().then(|| self.etcd_overview(&report)),
        };
        serde_json::to_vec(&overview)
            .map_err(|error| Error::internal("steward.overview", "what is known cannot be written").caused_by(error))
    }

    fn store_overview<'a>(&self, name: &'a str, report: &'a StoreReport, view: View) -> StoreOverview<'a> {
        let options = self.options.stores.iter().find(|store| store.store.as_str() == name);
        let high = 1.0 - options.map_or_else(default_warn_free, |options| options.warn_free);
        let mut pressures = Vec::new();
        if let Some(budget) = view.budget() {
            let used = budget.bytes.saturating_sub(budget.free);
            pressures.push(pressure(
                "budget of the store",
                used,
                budget.bytes,
                high,
                budget.waiting > 0,
            ));
        }
        if let Some(engine) = view.engine.as_ref().filter(|engine| engine.dram_capacity > 0) {
            let (used, of) = (engine.dram_used, engine.dram_capacity);
            pressures.push(pressure("memory of the engine, all stores", used, of, HIGH, false));
        }
        if let Some(engine) = view.engine.as_ref().filter(|engine| engine.ssd_capacity > 0) {
            let (used, of) = (engine.ssd_used, engine.ssd_capacity);
            pressures.push(pressure("SSD of the engine, all stores", used, of, HIGH, false));
        }
        StoreOverview {
            store: name,
            open: report.open,
            idle: report.idle,
            trouble: report.trouble.as_deref(),
            on_duty: report.on_duty,
            steward: report.steward.as_ref(),
            sweepers: &report.sweepers,
            users: report.users,
            taken_back: report.taken_back,
            freed: report.freed,
            failed_frees: report.failed_frees,
            actions: report.actions.iter().rev().take(SHOWN).collect(),
            pressure: pressures,
            suspected: report.holders.as_ref().map_or(0, |holders| holders.suspected),
            missing_holders: report.holders.as_ref().map_or(&[], |holders| &holders.missing),
            view,
        }
    }

    fn etcd_overview<'a>(&self, report: &'a Report) -> EtcdOverview<'a> {
        let high = self.options.etcd.as_ref().map_or(1.0, |etcd| etcd.warn_full);
        let known = report.etcd.iter().filter(|node| node.quota > 0);
        EtcdOverview {
            nodes: &report.etcd,
            compaction: report.compaction.as_ref(),
            pressure: known
                .map(|node| {
                    let what = format!("storage of etcd at {}", node.endpoint);
                    pressure(what, node.bytes, node.quota, high, node.full)
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_high_from_a_part_on_and_full_at_the_end() {
        let level = |used, is_full| pressure("x", used, 100, 0.9, is_full).level;
        assert_eq!(
            (level(89, false), level(90, false), level(100, false)),
            ("fine", "high", "full")
        );
        assert_eq!(level(10, true), "full", "a producer waits");
    }
}
