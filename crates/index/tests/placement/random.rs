//! Many random histories: processes open stores and sessions, sleep and look again, while clusters are added, closed, removed,
//! restored and checked. Each call to an etcd is one step, and the steps of all who are at work are mixed.
//!
//! - No store has live sessions on two clusters.
//! - A session is opened where the home says that the store is.
//! - A check finds no store twice, and afterwards every store that has records is found where they are.
//!
//! What is assumed of the operator is what docs/etcd-restore.md asks: nothing runs between a restore and its guard, and
//! clusters that the restored home does not know are added again before the guard.
//!
//! `TENSORHOLD_PLACEMENT_CASES=1000000` for the long form; `TENSORHOLD_PLACEMENT_SEED` for one case.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{ErrorKind, Rng as _, SeededRng, StoreId};
use tensorhold_index::placement::{
    NewStore, PlacedStore, add_cluster, check_clusters, close_cluster, read_map, remove_cluster,
};
use tensorhold_index::store::memory::{Fate, Saved};
use tensorhold_index::{Index as _, Session, TxnIndex};

use crate::name;
use crate::world::{CALL, CLUSTERS, Process, World};

const STORES: [&str; 3] = ["r", "s", "t"];
const OTHERS: [&str; 2] = ["b", "c"];
const PROCESSES: usize = 3;
const STEPS: u64 = 120;
/// How long anybody needs at most, if nobody disturbs.
const ENOUGH: Duration = Duration::from_secs(600);

/// A store that a process has open, and its last session.
struct Held {
    store: &'static str,
    placed: Arc<PlacedStore>,
    index: TxnIndex,
    session: Option<Session>,
}

type Work = Pin<Box<dyn Future<Output = ()>>>;

struct Case {
    world: Arc<World>,
    rng: SeededRng,
    processes: Vec<Arc<Process>>,
    held: Arc<Mutex<Vec<Held>>>,
    /// Everything that is under way; the operator does one thing at a time.
    users: Vec<Work>,
    operator: Option<Work>,
    /// The clusters that are part of the index, as the operator knows.
    members: Arc<Mutex<BTreeSet<&'static str>>>,
    saved: Vec<(&'static str, Saved)>,
    counts: Counts,
}

/// What happened, so that a test that does nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    sessions: u64,
    refused: u64,
    restores: u64,
}

impl Case {
    async fn new(seed: u64) -> Self {
        let world = World::new(seed).await;
        Self {
            rng: SeededRng::new(seed ^ 0x9e37),
            processes: (0..PROCESSES).map(|_| world.process()).collect(),
            held: Arc::default(),
            users: Vec::new(),
            operator: None,
            members: Arc::default(),
            saved: Vec::new(),
            counts: Counts::default(),
            world,
        }
    }

    fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[usize::try_from(self.rng.below(of.len() as u64)).expect("small")]
    }

    async fn run(&mut self) {
        for _ in 0..STEPS {
            match self.rng.below(100) {
                0..=55 => self.step(),
                56..=67 => self.open(),
                68..=75 => self.wake(),
                76..=79 => self.look_again(),
                80..=82 => self.mishap(),
                83 => {
                    let of = self.pick(&CLUSTERS);
                    self.saved.push((of, self.world.etcd(of).save()));
                }
                84..=85 => self.restore().await,
                _ => self.operate(),
            }
        }
        self.end().await;
    }

    /// One call of one who is at work.
    fn step(&mut self) {
        let of = self
            .rng
            .below(self.users.len() as u64 + u64::from(self.operator.is_some()));
        let at = usize::try_from(of).expect("small");
        if self.users.is_empty() && self.operator.is_none() {
            return;
        }
        if at == self.users.len() {
            let mut work = self.operator.take().expect("there is one");
            if poll(&mut work).is_pending() {
                self.operator = Some(work);
            }
        } else if poll(&mut self.users[at]).is_ready() {
            drop(self.users.swap_remove(at));
            self.look();
        }
    }

    /// The invariants.
    fn look(&self) {
        for store in STORES {
            let alive = self.world.with_keys(&format!("{store}/n/"), &[]);
            assert!(alive.len() <= 1, "store {store} is live at {alive:?}");
            let (Some(alive), Some(place)) = (alive.first(), self.world.value("home", &format!("{store}/place")))
            else {
                continue;
            };
            assert!(
                place.contains(&format!("{:?}", alive)),
                "live at {alive}, and the home says {place}"
            );
        }
    }

    fn open(&mut self) {
        let process = Arc::clone(&self.processes[usize::try_from(self.rng.below(PROCESSES as u64)).expect("small")]);
        let (store, held) = (self.pick(&STORES), Arc::clone(&self.held));
        self.users.push(Box::pin(async move {
            let id = StoreId::new(store).expect("a name");
            let Ok((placed, index)) = process.open(&id, NewStore::Begins).await else {
                return;
            };
            let session = index.open_session(CALL).await.ok();
            held.lock().push(Held {
                store,
                placed,
                index,
                session,
            });
        }));
    }

    fn take_held(&mut self) -> Option<Held> {
        let mut held = self.held.lock();
        let at = self.rng.below(held.len() as u64);
        (!held.is_empty()).then(|| held.swap_remove(usize::try_from(at).expect("small")))
    }

    /// A process that slept past its session goes on.
    fn wake(&mut self) {
        let Some(mut one) = self.take_held() else { return };
        if let Some(session) = one.session.take() {
            for cluster in CLUSTERS {
                // Ids count from one in each of them.
                if one.placed.cluster().as_str() == cluster {
                    self.world.etcd(cluster).expire(session.id());
                }
            }
        }
        let held = Arc::clone(&self.held);
        self.users.push(Box::pin(async move {
            // What it writes without a session, first.
            one.index.ensure_budget(1 << 20, CALL).await.ok();
            one.session = one.index.open_session(CALL).await.ok();
            held.lock().push(one);
        }));
    }

    /// An audit asks whether the store is still here.
    fn look_again(&mut self) {
        let Some(one) = self.take_held() else { return };
        let (held, world) = (Arc::clone(&self.held), Arc::clone(&self.world));
        self.users.push(Box::pin(async move {
            if one.index.confirm_place(CALL).await.is_ok() {
                let alive = world.with_keys(&format!("{}/n/", one.store), &[]);
                let here = one.placed.cluster();
                assert!(
                    alive.iter().all(|alive| *alive == here.as_str()),
                    "confirmed at {here}, live at {alive:?}"
                );
            }
            held.lock().push(one);
        }));
    }

    /// A reply of a process is lost, or an etcd does not answer it for a moment, or what was late arrives.
    fn mishap(&mut self) {
        let process = usize::try_from(self.rng.below(PROCESSES as u64)).expect("small");
        let store = &self.processes[process].client(self.pick(&CLUSTERS)).store;
        match self.rng.below(5) {
            0 => store.faults().outage(1),
            1 => drop(store.land()),
            fate => store
                .faults()
                .lose_reply([Fate::Applied, Fate::NotApplied, Fate::Later][usize::try_from(fate - 2).expect("small")]),
        }
    }

    /// An etcd is restored, and its operator does what the page says.
    async fn restore(&mut self) {
        if self.saved.is_empty() {
            return;
        }
        let at = usize::try_from(self.rng.below(self.saved.len() as u64)).expect("small");
        let (cluster, saved) = self.saved[at].clone();
        // The history after it is gone.
        let mut number = 0;
        self.saved.retain(|(of, _)| {
            number += 1;
            *of != cluster || number <= at + 1
        });
        self.look();
        self.counts.restores += 1;
        // What another operator had begun is not gone on with.
        self.operator = None;
        let etcd = self.world.etcd(cluster);
        etcd.put_back(&saved);
        etcd.declare();
        let operator = self.world.process();
        if cluster == "home" {
            let home = operator.client("home");
            let known = read_map(home, CALL).await.expect("a map").unwrap_or_default();
            let known = OTHERS
                .iter()
                .filter(|name| known.clusters.keys().any(|one| one.as_str() == **name));
            self.members.lock().extend(known);
        }
        let members: Vec<&str> = self.members.lock().iter().copied().collect();
        for member in members {
            if cluster == "home" || cluster == member {
                add(&operator, member, true).await.expect("added again");
            }
        }
        self.world.begin_epoch(cluster).await;
        if cluster == "home" {
            self.operator = Some(Box::pin(check(self.world.process())));
        }
    }

    /// The operator begins something, unless there is something to end first.
    fn operate(&mut self) {
        if self.operator.is_some() {
            return;
        }
        let (operator, cluster) = (self.world.process(), self.pick(&OTHERS));
        let (members, open) = (Arc::clone(&self.members), self.rng.below(2) == 0);
        let of_all = self.pick(&CLUSTERS);
        self.operator = Some(match self.rng.below(6) {
            0 | 1 => Box::pin(async move {
                // Known as a member from when it may have become one.
                members.lock().insert(cluster);
                add(&operator, cluster, false).await.ok();
            }),
            2 | 3 => Box::pin(async move {
                let home = operator.client("home");
                close_cluster(home, &name(of_all), open, &*operator.world.clock, CALL)
                    .await
                    .ok();
            }),
            4 => Box::pin(async move {
                let removed = remove_cluster(&*operator, &name(cluster), &*operator.world.clock, CALL).await;
                if removed.is_ok() {
                    members.lock().remove(cluster);
                }
            }),
            _ => Box::pin(check(operator)),
        });
    }

    /// Everybody comes to an end, every cluster is checked, and every store is found.
    async fn end(&mut self) {
        if let Some(work) = self.operator.take() {
            finish(work).await;
        }
        for work in std::mem::take(&mut self.users) {
            finish(work).await;
            self.look();
        }
        for process in &self.processes {
            for cluster in CLUSTERS {
                process.client(cluster).store.land();
            }
        }
        let operator = self.world.process();
        let members: Vec<&str> = self.members.lock().iter().copied().collect();
        for member in members {
            add(&operator, member, true).await.expect("added again");
        }
        check(Arc::clone(&operator)).await;
        for store in STORES {
            let id = StoreId::new(store).expect("a name");
            let [place, here] = ["place", "here"].map(|key| format!("{store}/{key}"));
            let with_records = self.world.with_keys(&format!("{store}/"), &[&place, &here]);
            assert!(with_records.len() <= 1, "store {store} has records at {with_records:?}");
            let opened = self.world.process().open(&id, NewStore::Begins).await;
            let (placed, index) = opened.unwrap_or_else(|error| panic!("store {store} is nowhere: {error}"));
            if let Some(cluster) = with_records.first() {
                assert_eq!(placed.cluster().as_str(), *cluster, "store {store}");
            }
            index.open_session(CALL).await.expect("a session");
            self.look();
        }
        for one in self.held.lock().drain(..) {
            self.counts.sessions += u64::from(one.session.is_some());
            self.counts.refused += u64::from(one.session.is_none());
        }
    }
}

async fn add(operator: &Arc<Process>, cluster: &'static str, again: bool) -> tensorhold_core::Result<()> {
    let (world, name, endpoints) = (&operator.world, name(cluster), [cluster.to_owned()]);
    let report = add_cluster(&**operator, &name, &endpoints, again, &*world.clock, &*world.rng, CALL).await?;
    assert_eq!(report.twice, []);
    Ok(())
}

async fn check(operator: Arc<Process>) {
    for _ in 0..4 {
        match check_clusters(&*operator, &*operator.world.clock, CALL).await {
            Ok(report) => {
                assert_eq!(report.twice, []);
                return;
            }
            // Another epoch began, or clusters were changed.
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Conflict),
                "{error}"
            ),
        }
    }
}

fn poll(work: &mut Work) -> Poll<()> {
    work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

async fn finish(work: Work) {
    let ended = tokio::time::timeout(ENOUGH, work).await;
    ended.expect("everybody comes to an end");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn no_store_is_ever_live_twice_or_nowhere() {
    let only = number("TENSORHOLD_PLACEMENT_SEED");
    let cases = number("TENSORHOLD_PLACEMENT_CASES").unwrap_or(1500);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let mut total = Counts::default();
    for seed in only.map_or(0..cases, |seed| seed..seed + 1) {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                let mut case = Case::new(seed).await;
                case.run().await;
                case.counts
            })
        }));
        let counts = ran.unwrap_or_else(|_| panic!("seed {seed}"));
        total.sessions += counts.sessions;
        total.refused += counts.refused;
        total.restores += counts.restores;
    }
    println!("{total:?}");
    assert!(
        only.is_some() || (total.sessions > cases / 10 && total.restores > cases / 10),
        "{total:?}"
    );
}
