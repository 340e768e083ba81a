//! What the parts of a steward share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Result, StoreId};
use tensorhold_features::{FeatureStore, Stage};
use tensorhold_index::Counts;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::certificates::CertificateReport;
use crate::idle::Round;
use crate::options::Options;
use crate::overview::Shown;
use crate::report::{CompactionReport, EtcdReport, Report, StoreReport, now_ms};
use crate::{Audited, Connect};

pub(crate) struct State {
    pub(crate) options: Options,
    pub(crate) connect: Arc<dyn Connect>,
    /// The stores that are open.
    stores: watch::Sender<BTreeMap<StoreId, FeatureStore>>,
    report: Mutex<Report>,
    /// The stores that are audited now.
    audited: Mutex<BTreeSet<StoreId>>,
    /// The stores that are left alone, and how each is asked for.
    resting: Mutex<BTreeMap<StoreId, Arc<Notify>>>,
    /// The last look at these.
    pub(crate) rounds: watch::Sender<Arc<Round>>,
    /// What the page shows.
    pub(crate) page: Shown,
    /// Whether a task of the steward has ended without being told to.
    broken: AtomicBool,
}

/// An audit of a store, the only one of this steward. Dropping it lets the next one begin.
#[derive(Debug)]
pub(crate) struct Auditing {
    state: Arc<State>,
    store: StoreId,
}

impl Auditing {
    /// None if one is under way.
    pub(crate) fn begin(state: &Arc<State>, store: &StoreId) -> Option<Self> {
        let is_first = state.audited.lock().insert(store.clone());
        is_first.then(|| Self {
            state: Arc::clone(state),
            store: store.clone(),
        })
    }
}

impl Drop for Auditing {
    fn drop(&mut self) {
        self.state.audited.lock().remove(&self.store);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl State {
    pub(crate) fn new(options: Options, connect: Arc<dyn Connect>) -> Self {
        let names = options.stores.iter().map(|store| store.store.as_str().to_owned());
        let report = Report {
            read_only: options.read_only,
            stores: names.map(|name| (name, StoreReport::default())).collect(),
            forgotten: 0,
            certificates: Vec::new(),
            etcd: Vec::new(),
            compaction: options.etcd.as_ref().map(|etcd| CompactionReport {
                why_not: etcd.never_compacts(options.read_only).map(str::to_owned),
                ..CompactionReport::default()
            }),
            // Until they have been listed once.
            trouble: options.others.as_ref().map(|_| "not listed yet".to_owned()),
        };
        Self {
            options,
            connect,
            stores: watch::Sender::default(),
            report: Mutex::new(report),
            audited: Mutex::default(),
            resting: Mutex::default(),
            rounds: watch::Sender::default(),
            page: Shown::default(),
            broken: AtomicBool::new(false),
        }
    }

    /// Whether all tasks of the steward run.
    pub(crate) fn is_whole(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }

    /// Takes in that a task has ended without being told to: what it looked after is looked after no more.
    pub(crate) fn task_ended(&self, store: Option<&StoreId>) {
        self.broken.store(true, Ordering::Release);
        if let Some(store) = store {
            self.opened(store, None);
            self.note(store, |report| {
                (report.open, report.on_duty) = (false, false);
                report.trouble = Some("the task that looked after it has ended by a defect".to_owned());
            });
        }
    }

    pub(crate) fn report(&self) -> Report {
        self.report.lock().clone()
    }

    /// The report of one store; none for a store that is not looked after.
    pub(crate) fn report_of(&self, store: &str) -> Option<StoreReport> {
        self.report.lock().stores.get(store).cloned()
    }

    /// Changes the report of a store.
    pub(crate) fn note(&self, store: &StoreId, change: impl FnOnce(&mut StoreReport)) {
        if let Some(report) = self.report.lock().stores.get_mut(store.as_str()) {
            change(report);
        }
        self.page.touch();
    }

    /// Takes in how many records a store has; none if they could not be counted.
    pub(crate) fn counted(&self, store: &StoreId, counts: Option<&Counts>) {
        let of = |stage| counts.map(|counts| counts.of(stage));
        self.note(store, |report| {
            (report.dead_letters, report.lost) = (of(Stage::Dead), of(Stage::Lost))
        });
    }

    /// Takes in how an audit of a store ended.
    pub(crate) fn audited(&self, store: &StoreId, audit: &Result<Audited>) {
        self.note(store, |report| report.audits.add(audit, now_ms()));
    }

    /// Takes in a store that is looked after from now on. False if it is already.
    pub(crate) fn add(&self, store: &StoreId) -> bool {
        let mut report = self.report.lock();
        let is_new = !report.stores.contains_key(store.as_str());
        if is_new {
            report.stores.insert(store.as_str().to_owned(), StoreReport::default());
        }
        is_new
    }

    /// Takes in that a store is left alone. Returns how it is asked for.
    pub(crate) fn rests(&self, store: &StoreId) -> Arc<Notify> {
        let asked = Arc::new(Notify::new());
        self.resting.lock().insert(store.clone(), Arc::clone(&asked));
        asked
    }

    pub(crate) fn rests_no_more(&self, store: &StoreId) {
        self.resting.lock().remove(store);
    }

    pub(crate) fn resting(&self) -> BTreeSet<StoreId> {
        self.resting.lock().keys().cloned().collect()
    }

    /// Has a store opened that is left alone. False if it is not.
    pub(crate) fn wake(&self, store: &str) -> bool {
        let resting = self.resting.lock();
        let asked = resting.iter().find(|(id, _)| id.as_str() == store);
        asked.inspect(|(_, asked)| asked.notify_one()).is_some()
    }

    /// Whether a store is audited now.
    pub(crate) fn is_audited(&self, store: &StoreId) -> bool {
        self.audited.lock().contains(store)
    }

    /// Whether holders of a store are missing, or its samples are still looked for because of that.
    pub(crate) fn misses_holders(&self, store: &StoreId) -> bool {
        let report = self.report.lock();
        let holders = report
            .stores
            .get(store.as_str())
            .and_then(|store| store.holders.as_ref());
        holders.is_some_and(|seen| seen.unsettled || seen.suspected > 0 || !seen.missing.is_empty())
    }

    /// Takes in that a store was forgotten: it is looked after no more, until it is found again.
    pub(crate) fn forgot(&self, store: &StoreId) {
        let mut report = self.report.lock();
        report.stores.remove(store.as_str());
        report.forgotten += 1;
        drop(report);
        self.page.forget(store);
    }

    /// Takes in why the stores of the index cannot be listed; none if they can.
    pub(crate) fn note_listing(&self, trouble: Option<String>) {
        self.report.lock().trouble = trouble;
    }

    pub(crate) fn note_certificates(&self, seen: Vec<CertificateReport>) {
        self.report.lock().certificates = seen;
    }

    pub(crate) fn note_etcd(&self, nodes: Vec<EtcdReport>) {
        self.report.lock().etcd = nodes;
        self.page.touch();
    }

    /// Changes what is told of compactions of etcd.
    pub(crate) fn note_compaction(&self, change: impl FnOnce(&mut CompactionReport)) {
        if let Some(report) = &mut self.report.lock().compaction {
            change(report);
        }
        self.page.touch();
    }

    pub(crate) fn opened(&self, store: &StoreId, opened: Option<FeatureStore>) {
        self.stores.send_modify(|stores| {
            match opened {
                Some(opened) => stores.insert(store.clone(), opened),
                None => stores.remove(store),
            };
        });
    }

    /// A store that is open. One that is left alone, or that is being opened, is waited for.
    pub(crate) async fn store(&self, store: &str, within: Duration) -> Option<FeatureStore> {
        let find = |stores: &BTreeMap<StoreId, FeatureStore>| {
            let mut all = stores.iter();
            all.find(|(id, _)| id.as_str() == store).map(|(_, store)| store.clone())
        };
        let mut stores = self.stores.subscribe();
        if let Some(open) = find(&stores.borrow()) {
            return Some(open);
        }
        let cannot_be_opened = || self.report_of(store).is_none_or(|report| report.trouble.is_some());
        if !self.wake(store) && cannot_be_opened() {
            return None;
        }
        let opening = stores.wait_for(|stores| find(stores).is_some());
        let opened = timeout(within, opening).await.ok()?.ok()?;
        find(&opened)
    }
}
