//! Two stewards on a real master, holder and etcd, in processes of their own: the one on duty is killed in the middle of a
//! thousand frees, and the other goes on.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects and what it saw"
)]

mod real;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use real::{Reach, item};
use rustix::process::{Pid, Signal, kill_process};
use tensorhold_core::{Clock, StoreId, SystemClock, SystemRng};
use tensorhold_custody::Reason;
use tensorhold_features::{FeatureConfig, FeatureStore, Identity, PutItem, SampleRef};
use tensorhold_index::{Index, Office};
use tensorhold_steward::{Options, Steward};
use tensorhold_testkit::Cluster;
use tokio::task::block_in_place;

const WITHIN: Duration = Duration::from_secs(60);
const SAMPLES: usize = 1000;
/// Tells a copy of this program that it is a steward, and of what.
const CHILD: &str = "TENSORHOLD_TEST_STEWARD";

fn store() -> StoreId {
    StoreId::new("real").expect("a name")
}

/// Runs as a steward when this program was started as one; as a test it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_a_steward() {
    let Ok(reach) = std::env::var(CHILD) else { return };
    let reach: Reach = serde_json::from_str(&reach).expect("how to reach the cluster");
    let mut options = Options::new([store()]);
    options.look_every = Duration::from_secs(1);
    // Slowly, and in small parts, so that it can be killed in the middle.
    options.stores[0].frees_per_second = Some(200);
    options.stores[0].sweep_limit = 20;
    let _steward = Steward::start(options, Arc::new(reach)).await.expect("a steward");
    // Until it is killed, or its parent is gone.
    let parent = || std::io::read_to_string(std::io::stdin());
    drop(tokio::task::spawn_blocking(parent).await);
}

/// A steward in a process of its own. Dropping it kills it.
struct Away(Child);

impl Away {
    fn start(reach: &Reach) -> Self {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "as_a_steward", "--nocapture"])
            .env(CHILD, serde_json::to_string(reach).expect("JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill(&self) {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id");
        kill_process(pid, Signal::KILL).expect("killed");
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn numbered(n: usize) -> PutItem {
    item(&format!("run/{n:04}"), u8::try_from(n % 251).unwrap_or(0), 3)
}

async fn steward_in_office(index: &dyn Index) -> Option<u32> {
    let leaders = index.leaders(WITHIN).await.expect("who leads");
    leaders.of(Office::Steward).map(|leader| leader.identity.pid)
}

/// How many samples are still to be freed.
async fn left(index: &dyn Index) -> usize {
    let (mut left, mut place) = (0, None);
    loop {
        let list = index.to_free(place.as_ref(), 1000, WITHIN).await.expect("a list");
        left += list.tasks.len();
        place = list.next;
        if place.is_none() {
            return left;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_goes_on_when_the_one_on_duty_is_killed() {
    let builder = Cluster::builder().p2p_metadata(true).segment_mib(64).etcd_nodes(1);
    let cluster = block_in_place(|| builder.start()).expect("a cluster");
    let reach = Reach::of(&cluster.endpoints());
    let engine = reach.connect_engine();
    let index = reach.connect_index(&store(), Identity::of_this_process("test")).await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = FeatureConfig {
        sweep_every: None,
        pool_bytes: 8 << 20,
        ..FeatureConfig::new(store())
    };
    let opened = FeatureStore::open(
        Arc::clone(&engine),
        Arc::clone(&index),
        config,
        Arc::clone(&clock),
        Arc::new(SystemRng),
    );
    let producer = opened.await.expect("a store");
    let mut samples: Vec<SampleRef> = Vec::new();
    for n in 0..SAMPLES {
        samples.push(producer.put(numbered(n), WITHIN).await.expect("put").reference);
    }
    let stewards = [Away::start(&reach), Away::start(&reach)];
    let begun = clock.now();
    let mut in_office = None;
    while in_office.is_none() {
        assert!(clock.now().since(begun) < WITHIN, "no steward took office");
        in_office = steward_in_office(&*index).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let first = stewards
        .iter()
        .position(|steward| Some(steward.pid()) == in_office)
        .expect("one of them");
    // Retired by a process that does not free: as if it had died right after.
    let session = index.open_session(WITHIN).await.expect("a session");
    for part in samples.chunks(100) {
        for answer in index.retire(&session, part, Reason::Aborted, WITHIN).await {
            answer.expect("retired");
        }
    }
    let mut to_free = left(&*index).await;
    while to_free > SAMPLES * 3 / 4 {
        assert!(clock.now().since(begun) < 2 * WITHIN, "{to_free} left");
        tokio::time::sleep(Duration::from_millis(50)).await;
        to_free = left(&*index).await;
    }
    stewards[first].kill();
    let killed = clock.now();
    let at_its_death = left(&*index).await;
    assert!(
        at_its_death > SAMPLES / 4,
        "it was killed in the middle: {at_its_death} left"
    );
    let mut taken_over = None;
    loop {
        let since = clock.now().since(killed);
        let other = steward_in_office(&*index)
            .await
            .is_some_and(|pid| pid == stewards[1 - first].pid());
        let now_left = left(&*index).await;
        if taken_over.is_none() && other && now_left < at_its_death.saturating_sub(40) {
            taken_over = Some(since);
        }
        if now_left == 0 {
            eprintln!(
                "{at_its_death} left at its death; the other freed after {taken_over:?}; all gone after {since:?}"
            );
            break;
        }
        assert!(since < WITHIN, "{now_left} left after {since:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let taken_over = taken_over.expect("the other steward did it");
    assert!(taken_over < Duration::from_secs(15), "it went on after {taken_over:?}");
    let begun = clock.now();
    loop {
        let used = block_in_place(|| engine.usage(WITHIN)).expect("usage").dram_used;
        if used == 0 {
            break;
        }
        assert!(
            clock.now().since(begun) < Duration::from_secs(10),
            "{used} bytes are left in the engine"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    session.close(WITHIN).await.expect("closed");
    producer.close(WITHIN).await.expect("closed");
}
