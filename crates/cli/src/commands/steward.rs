//! `steward`: a steward in this process, until it is told to stop; and `token`: who may use its HTTP interface.
//!
//! ```text
//! flags ▷ the settings below `steward` ▷ defaults: all stores of the index, its etcd, HTTP on loopback
//!   ─▶ tensorhold_steward::Steward ─▶ says where it listens (standard output) ─▶ log (standard error)
//!   ─▶ SIGTERM or SIGINT: leaves its offices, closes its stores; a second one ends it at once
//! ```
//! - Whatever cannot be reached is tried again: it may be started before etcd and the master.
//! - One connection to etcd and one engine serve all stores.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tensorhold_core::{Clock, Error, ErrorKind, Result, StoreId, SystemClock, SystemRng};
use tensorhold_engine::Engine;
use tensorhold_features::Identity;
use tensorhold_index::placement::NewStore;
use tensorhold_index::{Index, TxnIndex, forget, in_use, stores};
use tensorhold_index_etcd::{EtcdClusters, EtcdStore, open_store};
use tensorhold_steward::http::auth::{TokenEntry, fingerprint, new_token};
use tensorhold_steward::{Compact, Connect, EtcdOptions, Options, Steward, StoreOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::OnceCell;

use super::reclaim::engine_of;
use crate::args::{Steward as Wanted, Token, Where};
use crate::failure::Failure;
use crate::io::{ConnectEngine, Host};
use crate::output::{Answer, object};
use crate::reach::MOST_STORES;
use crate::settings::{Section, Settings, typed};
use crate::text::json;

/// How long etcd and the engine are waited for at a time.
const CONNECT: Duration = Duration::from_secs(10);
/// How long it takes to stop.
const STOP: Duration = Duration::from_secs(20);

pub(crate) async fn run(
    settings: Settings,
    wanted: Wanted,
    as_json: bool,
    host: &Host,
    out: &mut (dyn Write + Send),
) -> Result<Answer, Failure> {
    let connect = engine_of(host, "a steward cannot run here")?;
    let options = options(&settings, wanted)?;
    // Before anything runs: a signal that comes early must not be missed.
    let mut signals = Signals::listen()?;
    if let Some(show) = host.show_events {
        show();
    }
    let cluster = Arc::new(Cluster {
        settings,
        connect,
        clock: Arc::new(SystemClock::new()),
        etcd: OnceCell::new(),
        engine: OnceCell::new(),
    });
    let started = Steward::start(options, Arc::clone(&cluster) as Arc<dyn Connect>).await;
    let mut steward = started.map_err(|error| Failure::of("the steward did not start", &error))?;
    announce(&steward, as_json, out);
    let broken = tokio::select! {
        () = signals.next() => None,
        error = steward.broken() => Some(error),
    };
    let stopped = tokio::select! {
        stopped = steward.stop(STOP) => stopped,
        () = signals.next() => Ok(()),
    };
    // The engine waits for its calls when it is dropped.
    drop(tokio::task::spawn_blocking(move || drop(cluster)).await);
    match (broken, stopped) {
        (Some(error), _) => Err(Failure::of("the steward has stopped by itself", &error)
            .advise("start it again; its log says what happened")),
        (None, Err(error)) => Err(Failure::of("the steward did not stop in time", &error)),
        (None, Ok(())) => Ok(Answer::new(object!("state": "stopped"), "stopped\n".to_owned())),
    }
}

/// Says where it listens, for people and for programs that wait for it.
fn announce(steward: &Steward, as_json: bool, out: &mut (dyn Write + Send)) {
    let address = steward.address().map(|address| address.to_string());
    let line = if as_json {
        // In one line: a program that waits for it reads a line.
        object!("state": "started", "listen": address).to_string()
    } else {
        let at = address.unwrap_or_else(|| "no address".to_owned());
        format!("the steward has started; it listens on {at}")
    };
    // A reader that has left does not stop a steward.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

/// The settings of the steward.
fn options(settings: &Settings, wanted: Wanted) -> Result<Options, Failure> {
    let all = &settings.all;
    let mut given = all.section("steward");
    given.remove("etcd");
    if given.remove("all") == Some(Value::Bool(true)) || !given.contains_key("stores") {
        given.entry("others").or_insert_with(|| Value::Object(Section::new()));
    }
    given.entry("http").or_insert_with(|| Value::Object(Section::new()));
    let mut options: Options = typed("the steward", given)?;
    if all.value("steward.etcd.watch") == true {
        let usual = EtcdOptions::new(settings.etcd.clone());
        let compact = all.text("steward.etcd.compact").parse::<Compact>();
        let compact = compact.map_err(|error| Failure::of("these settings of the steward cannot work", &error))?;
        let every = all.value("steward.etcd.compact_every").as_f64();
        let every = every.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        options.etcd = Some(EtcdOptions {
            quota: all.value("steward.etcd.quota").as_u64().unwrap_or(usual.quota),
            warn_full: all.value("steward.etcd.warn_full").as_f64().unwrap_or(usual.warn_full),
            defragment: all.value("steward.etcd.defragment") == true,
            compact: wanted.compact.unwrap_or(compact),
            compact_every: wanted.compact_every.or(every).unwrap_or(usual.compact_every),
            ..usual
        });
    }
    // Only the one that is named, with its settings.
    if let Some(store) = &settings.store {
        options.stores.retain(|one| one.store == *store);
        if options.stores.is_empty() {
            let usual = StoreOptions::new(store.clone());
            let of_others = options.others.as_ref().map(|others| others.of(store.clone()));
            options.stores.push(of_others.unwrap_or(usual));
        }
        options.others = None;
    }
    options.read_only |= wanted.read_only;
    if let (Some(http), Some(listen)) = (&mut options.http, wanted.listen) {
        http.listen = listen;
    }
    for store in &mut options.stores {
        store.audit_every = wanted.audit_every.or(store.audit_every);
        store.end_when_unused = wanted.end_when_unused.or(store.end_when_unused);
    }
    if let Some(others) = &mut options.others {
        others.audit_every = wanted.audit_every.or(others.audit_every);
        others.end_when_unused = wanted.end_when_unused.or(others.end_when_unused);
    }
    options
        .validate()
        .map_err(|error| Failure::of("these settings of the steward cannot work", &error))?;
    Ok(options)
}

/// The signals that stop it.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                let why = error.to_string();
                Failure::new(ErrorKind::Internal, "signals cannot be received", why, "is this Unix?")
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// What the stores of a steward share.
struct Cluster {
    settings: Settings,
    connect: Arc<ConnectEngine>,
    clock: Arc<dyn Clock>,
    etcd: OnceCell<(EtcdStore, Arc<EtcdClusters>)>,
    engine: OnceCell<Arc<dyn Engine>>,
}

impl Cluster {
    /// The home of the index, and its clusters.
    async fn etcd(&self) -> Result<&(EtcdStore, Arc<EtcdClusters>)> {
        let open = async || {
            let config = self.settings.etcd.clone();
            let home = EtcdStore::open(config.clone(), Arc::clone(&self.clock), CONNECT).await?;
            let clusters = EtcdClusters::new(home.clone(), config, Arc::clone(&self.clock));
            Ok((home, Arc::new(clusters)))
        };
        self.etcd.get_or_try_init(open).await
    }

    async fn connected(&self) -> Result<Arc<dyn Engine>> {
        // Mooncake's library waits long for a master that is not there.
        let listens = crate::admin::listens(&self.settings, CONNECT).await;
        listens.map_err(|failure| Error::unavailable("command.engine", failure.what))?;
        let (connect, settings) = (
            Arc::clone(&self.connect),
            Value::Object(self.settings.engine.clone()).to_string(),
        );
        let connecting = tokio::task::spawn_blocking(move || connect(&settings, CONNECT));
        connecting.await.map_err(|failure| {
            Error::internal("command.engine", "the task that connects panicked or was cancelled").caused_by(failure)
        })?
    }
}

#[async_trait]
impl Connect for Cluster {
    async fn engine(&self, _: &StoreId) -> Result<Arc<dyn Engine>> {
        let engine = self.engine.get_or_try_init(|| self.connected()).await?;
        Ok(Arc::clone(engine))
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        let clusters = Arc::clone(&self.etcd().await?.1);
        let index = TxnIndex::new(
            open_store(clusters, store, NewStore::Begins, Arc::new(SystemRng), CONNECT).await?,
            store,
            self.settings.index.clone(),
            Arc::clone(&self.clock),
            Arc::new(SystemRng),
        );
        Ok(Arc::new(index.with_identity(identity)))
    }

    async fn stores(&self, within: Duration) -> Result<Vec<StoreId>> {
        let (home, _) = self.etcd().await?;
        stores(home, None, MOST_STORES, &*self.clock, within).await
    }

    async fn in_use(&self, stores: &[StoreId], within: Duration) -> Result<Vec<StoreId>> {
        let (home, _) = self.etcd().await?;
        in_use(home, stores, &*self.clock, within).await
    }

    async fn forget(&self, store: &StoreId, within: Duration) -> Result<bool> {
        let (home, _) = self.etcd().await?;
        forget(home, store, &*self.clock, within).await
    }
}

/// Makes a token. It is shown once, and kept nowhere.
pub(crate) fn token(wanted: Token, place: &Where, host: &Host) -> Result<Answer, Failure> {
    let stores = place.store.as_deref().map(str::parse::<StoreId>).transpose();
    let stores = stores.map_err(|error| Failure::of("this is no name of a store", &error))?;
    let token = new_token(&SystemRng);
    let expires = wanted.valid.map(|valid| (host.now_ms)() / 1000 + valid.as_secs());
    let entry = TokenEntry {
        name: wanted.name,
        sha256: fingerprint(&token),
        stores: stores.map(|store| vec![store]),
        write: wanted.write,
        expires,
    };
    entry
        .validate()
        .map_err(|error| Failure::of("there can be no such token", &error))?;
    let written = serde_json::to_value(&entry).map_err(|_| {
        let error = Error::internal("command.token", "the entry cannot be written as JSON");
        Failure::of("there is no token", &error)
    })?;
    // A text of JSON is one of TOML, too.
    let fields = written
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null());
    let lines: Vec<String> = fields
        .map(|(name, value)| format!("{name} = {}\n", json(value)))
        .collect();
    let text = format!(
        "{token}\n\nKeep it: it is shown only now. Its entry, for the file of settings of the steward:\n\n\
         [[steward.http.tokens]]\n{}",
        lines.concat()
    );
    Ok(Answer::new(object!("token": token, "entry": written), text))
}
