//! A worker process: four workers that reserve, commit, take, use and acknowledge samples, and a sweep beside them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Nonce, Retry, SampleId, StoreId, SystemClock, SystemRng};
use tensorhold_custody::{GroupName, Publication};
use tensorhold_index::{Commit, Index, IndexConfig, Reserve, SampleRef, Session, TxnIndex};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};

use crate::history::{Ask, Recorder, Step};

pub const TASK: &str = "TENSORHOLD_CHAOS_WORKER";
pub const STORE: &str = "chaos";
pub const WORKERS: usize = 4;
pub const BYTES: u64 = 10;
const WITHIN: Duration = Duration::from_secs(15);
/// Long enough that a worker that is stopped at a random moment is likely to hold something.
const USE: Duration = Duration::from_millis(40);

#[derive(Serialize, Deserialize)]
pub struct Task {
    pub endpoints: Vec<String>,
    pub process: usize,
    pub seconds: u64,
    pub history: PathBuf,
}

pub fn settings() -> IndexConfig {
    IndexConfig {
        session_ttl: Duration::from_secs(5),
        tick: Duration::from_millis(500),
        grace_ticks: 2,
        reserve_ticks: 40,
        lost_ticks: 4,
        ..IndexConfig::default()
    }
}

pub fn group() -> GroupName {
    GroupName::new("trainers").expect("a name")
}

pub async fn index(endpoints: &[String]) -> Arc<TxnIndex> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut config = EtcdConfig::new(endpoints.iter().cloned());
    config.root = "chaos".to_owned();
    let txn_store = EtcdStore::open(config, Arc::clone(&clock), Duration::from_secs(30))
        .await
        .expect("etcd");
    let store = StoreId::new(STORE).expect("a name");
    Arc::new(TxnIndex::new(
        Arc::new(txn_store),
        &store,
        settings(),
        clock,
        Arc::new(SystemRng),
    ))
}

pub fn main(task: &str) {
    let task: Task = serde_json::from_str(task).expect("a task");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let index = index(&task.endpoints).await;
        let clock = SystemClock::new();
        let until = Deadline::after(&clock, Duration::from_secs(task.seconds));
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            let worker = task.process * WORKERS + number;
            let recorder = Recorder::open(&task.history, worker);
            workers.push(tokio::spawn(work(Arc::clone(&index), recorder, worker, clock, until)));
        }
        let sweeper = tokio::spawn(sweep(Arc::clone(&index), clock, until));
        for worker in workers {
            worker.await.expect("a worker does not panic");
        }
        sweeper.await.expect("a sweeper does not panic");
    });
}

async fn open(index: &TxnIndex) -> Session {
    loop {
        match index.open_session(WITHIN).await {
            Ok(session) => return session,
            Err(error) => eprintln!("no session yet: {error}"),
        }
    }
}

/// Whether the outcome of a call is unknown.
fn unclear(error: &Error) -> bool {
    error.retry() == Retry::Ambiguous
}

async fn work(index: Arc<TxnIndex>, recorder: Recorder, worker: usize, clock: SystemClock, until: Deadline) {
    let mut session = open(&index).await;
    let mut made = 0;
    while !until.passed(&clock) {
        if !session.is_alive() {
            session = open(&index).await;
        }
        made += 1;
        produce(&index, &session, &recorder, &format!("w{worker}-{made}")).await;
        consume(&index, &session, &recorder).await;
    }
    if let Err(error) = session.close(WITHIN).await {
        eprintln!("the session of worker {worker} ends by its time to live: {error}");
    }
}

async fn produce(index: &TxnIndex, session: &Session, recorder: &Recorder, name: &str) {
    let sample = SampleId::new(name).expect("a name");
    let id = recorder.asked(Some(name), Ask::Reserve);
    let wish = Reserve {
        sample: sample.clone(),
        nonce: Nonce::from_u64(1),
        bytes: BYTES,
        plan: String::new(),
        claims: Vec::new(),
    };
    let generation = match index.reserve(session, &[wish], WITHIN).await.remove(0) {
        Ok(generation) => generation,
        Err(error) if unclear(&error) => return recorder.unclear(id),
        Err(_) => return recorder.nothing(id),
    };
    recorder.told(
        id,
        name,
        Step::Reserved {
            generation: generation.get(),
        },
    );
    let id = recorder.asked(
        Some(name),
        Ask::Commit {
            generation: generation.get(),
        },
    );
    let publication = Publication {
        groups: vec![group()],
        retain: false,
        max_attempts: 1000,
    };
    let commit = Commit {
        becomes: None,
        sample: SampleRef { sample, generation },
        publication,
        description: b"d".to_vec(),
    };
    match index.commit(session, &[commit], WITHIN).await.remove(0) {
        Ok(_) => recorder.told(
            id,
            name,
            Step::Committed {
                generation: generation.get(),
            },
        ),
        Err(error) if unclear(&error) => recorder.unclear(id),
        Err(error) if error.kind() == ErrorKind::Fenced => {
            recorder.told(
                id,
                name,
                Step::CommitRefused {
                    generation: generation.get(),
                },
            );
        }
        Err(_) => recorder.nothing(id),
    }
}

async fn consume(index: &TxnIndex, session: &Session, recorder: &Recorder) {
    let id = recorder.asked(None, Ask::Lease);
    let held = match index.lease_next(session, &group(), 1, 20, Duration::from_secs(2)).await {
        Ok(held) => held,
        Err(_) => return recorder.unclear(id),
    };
    let Some(lease) = held.first() else {
        return recorder.nothing(id);
    };
    let (name, generation, token) = (
        lease.sample.sample.to_string(),
        lease.sample.generation.get(),
        lease.token.0,
    );
    recorder.told(id, &name, Step::Leased { generation, token });
    tokio::time::sleep(USE).await;
    let id = recorder.asked(Some(&name), Ask::Ack { generation, token });
    match index.ack(session, &held, WITHIN).await.remove(0) {
        Ok(_) => recorder.told(id, &name, Step::Acked { generation, token }),
        Err(error) if unclear(&error) => recorder.unclear(id),
        Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::NotFound) => {
            recorder.told(id, &name, Step::AckRefused { generation, token });
        }
        Err(_) => recorder.nothing(id),
    }
}

async fn sweep(index: Arc<TxnIndex>, clock: SystemClock, until: Deadline) {
    let mut session = open(&index).await;
    while !until.passed(&clock) {
        if !session.is_alive() {
            session = open(&index).await;
        }
        clear_up(&index, &session).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// One sweep, and the freeing of what is to be freed; there are no objects here, so that always works.
pub async fn clear_up(index: &TxnIndex, session: &Session) {
    if let Err(error) = index.sweep(session, 1000, WITHIN).await {
        eprintln!("a sweep was cut short: {error}");
        return;
    }
    match index.to_free(None, 500, WITHIN).await {
        Ok(list) => {
            let samples: Vec<_> = list.tasks.into_iter().map(|task| task.sample).collect();
            for result in index.freed(session, &samples, WITHIN).await {
                if let Err(error) = result {
                    eprintln!("not freed yet: {error}");
                }
            }
        }
        Err(error) => eprintln!("what is to be freed is not known: {error}"),
    }
}
