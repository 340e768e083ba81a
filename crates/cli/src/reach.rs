//! The index of a store over etcd, for commands.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, ErrorKind, StoreId, SystemClock, SystemRng};
use tensorhold_index::placement::NewStore;
use tensorhold_index::store::TxnStore;
use tensorhold_index::{Identity, TxnIndex, stores};
use tensorhold_index_etcd::{EtcdClusters, EtcdStore, open_store};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::text::shown;

/// How long etcd is waited for at first: longer than an election, and not much longer than a person is patient.
const CONNECT: Duration = Duration::from_secs(5);
/// The most stores that are listed.
pub(crate) const MOST_STORES: usize = 1000;

/// etcd, and what the command was told.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) settings: Settings,
    /// The home of the index.
    pub(crate) etcd: EtcdStore,
    pub(crate) clusters: Arc<EtcdClusters>,
    pub(crate) clock: Arc<dyn Clock>,
    deadline: Deadline,
}

impl Reach {
    /// Connects to etcd.
    pub(crate) async fn open(settings: Settings, within: Duration) -> Result<Self, Failure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let deadline = Deadline::after(&*clock, within);
        let etcd = EtcdStore::open(settings.etcd.clone(), Arc::clone(&clock), within.min(CONNECT)).await;
        let etcd = etcd.map_err(|error| unreadable(&settings, &error))?;
        let clusters = EtcdClusters::new(etcd.clone(), settings.etcd.clone(), Arc::clone(&clock));
        Ok(Self {
            settings,
            etcd,
            clusters: Arc::new(clusters),
            clock,
            deadline,
        })
    }

    /// The same connection, with another time to use it.
    pub(crate) fn renewed(&self, within: Duration) -> Self {
        Self {
            deadline: Deadline::after(&*self.clock, within),
            ..self.clone()
        }
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.remaining(&*self.clock)
    }

    pub(crate) fn failure(&self, error: &tensorhold_core::Error) -> Failure {
        unreadable(&self.settings, error)
    }

    /// The stores in the index.
    pub(crate) async fn stores(&self) -> Result<Vec<StoreId>, Failure> {
        let found = stores(&self.etcd, None, MOST_STORES, &*self.clock, self.left()).await;
        found.map_err(|error| self.failure(&error))
    }

    /// All stores in the index, however many.
    pub(crate) async fn all_stores(&self) -> Result<Vec<StoreId>, Failure> {
        let mut all: Vec<StoreId> = Vec::new();
        loop {
            let part = stores(&self.etcd, all.last(), MOST_STORES, &*self.clock, self.left()).await;
            let part = part.map_err(|error| self.failure(&error))?;
            let is_last = part.len() < MOST_STORES;
            all.extend(part);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// The store that the command is about: the one that is named, or the only one. It must exist.
    pub(crate) async fn store(&self) -> Result<StoreId, Failure> {
        if let Some(store) = &self.settings.store {
            match self.open_store(store).await {
                Ok(_) => return Ok(store.clone()),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(self.failure(&error)),
            }
        }
        let all = self.stores().await?;
        let names = || {
            let mut names: Vec<String> = all.iter().take(10).map(|store| shown(store.as_str())).collect();
            if all.len() > names.len() {
                names.push("…".to_owned());
            }
            names.join(", ")
        };
        let at = self.settings.etcd_shown();
        match (&self.settings.store, all.as_slice()) {
            (Some(store), all) if all.contains(store) => Ok(store.clone()),
            (Some(store), []) => Err(Failure::not_found(
                format!("there is no store {}", shown(store.as_str())),
                format!("the index in etcd at {at} has no store yet"),
                "a store begins with the first process that opens it; is this the right etcd, and the right root?",
            )),
            (Some(store), _) => Err(Failure::not_found(
                format!("there is no store {}", shown(store.as_str())),
                format!("the index in etcd at {at} has {}", names()),
                "name one of these with --store",
            )),
            (None, [only]) => Ok(only.clone()),
            (None, []) => Err(Failure::not_found(
                "there is no store",
                format!("the index in etcd at {at} has no store yet"),
                "a store begins with the first process that opens it; is this the right etcd, and the right root?",
            )),
            (None, _) => Err(Failure::new(
                ErrorKind::Invalid,
                "which store?",
                format!("the index in etcd at {at} has {}", names()),
                "name one of these with --store, or in TENSORHOLD_STORE",
            )),
        }
    }

    /// The cluster that a store is on.
    pub(crate) async fn txn_store(&self, store: &StoreId) -> Result<Arc<dyn TxnStore>, Failure> {
        self.open_store(store).await.map_err(|error| self.failure(&error))
    }

    /// Makes sure that a store is there: a new one begins.
    pub(crate) async fn begin(&self, store: &StoreId) -> Result<(), Failure> {
        let clusters = Arc::clone(&self.clusters);
        let begun = open_store(clusters, store, NewStore::Begins, Arc::new(SystemRng), self.left()).await;
        begun.map(drop).map_err(|error| self.failure(&error))
    }

    async fn open_store(&self, store: &StoreId) -> tensorhold_core::Result<Arc<dyn TxnStore>> {
        let clusters = Arc::clone(&self.clusters);
        open_store(clusters, store, NewStore::IsLeft, Arc::new(SystemRng), self.left()).await
    }

    /// The index of a store. Its sessions, if there are any, say that they are this command's.
    pub(crate) async fn index(&self, store: &StoreId) -> Result<TxnIndex, Failure> {
        let index = TxnIndex::new(
            self.txn_store(store).await?,
            store,
            self.settings.index.clone(),
            Arc::clone(&self.clock),
            Arc::new(SystemRng),
        );
        Ok(index.with_identity(Identity {
            program: "tensorhold".to_owned(),
            ..Identity::of_this_process("command")
        }))
    }
}

fn unreadable(settings: &Settings, error: &tensorhold_core::Error) -> Failure {
    let at = settings.etcd_shown();
    let failure = match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Timeout => Failure::of(format!("etcd does not answer at {at}"), error),
        ErrorKind::Denied => Failure::of(format!("etcd at {at} does not let us in"), error),
        _ => Failure::of(format!("the index in etcd at {at} cannot be used"), error),
    };
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Timeout => {
            failure.advise(settings.advice_if_unreachable("--etcd, or TENSORHOLD_ETCD"))
        }
        _ => failure,
    }
}
