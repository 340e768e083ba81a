//! Those of one process: what it frees is handed to them, whatever goes wrong with that.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{ErrorKind, ManualClock, Result, Retry};
use holdfast_index::SampleRef;
use holdfast_index::store::memory::Fate;
use tokio::task::JoinHandle;

use crate::world::{Client, SOON, WITHIN, World, ended, kind, waiting};

/// A process in which one has a sample, another is in the line and a third in the house.
struct Lively {
    world: World,
    clock: Arc<ManualClock>,
    owner: Arc<Client>,
    sample: SampleRef,
    in_line: Arc<Client>,
    line: JoinHandle<Result<SampleRef>>,
    at_home: Arc<Client>,
    home: JoinHandle<Result<SampleRef>>,
}

impl Lively {
    /// The one in the line waits `in_line_within` long at most, the one in the house `at_home_within`.
    async fn new(in_line_within: Duration, at_home_within: Duration) -> Self {
        let world = World::with_budget(10).await;
        let clock = Arc::new(ManualClock::new());
        let [first, owner, in_line, at_home] = world.house(Arc::clone(&clock)).await;
        let a = first.reserve("a", 10, WITHIN).await.expect("fits");
        let wait = waiting(&owner, "b", 10, WITHIN);
        world.until_waiting(1).await;
        first.use_up(&a).await;
        let sample = ended(wait).await.expect("served");
        let line = waiting(&in_line, "c", 10, in_line_within);
        world.until_waiting(1).await;
        let home = waiting(&at_home, "d", 10, at_home_within);
        // It has entered the house before it waits for anything else.
        tokio::task::yield_now().await;
        Self {
            world,
            clock,
            owner,
            sample,
            in_line,
            line,
            at_home,
            home,
        }
    }

    fn who_waits(&self) -> Vec<String> {
        self.world.keys_with("/b/w/")
    }

    /// Whoever comes first.
    async fn both_are_served(mut self) {
        let reserved = |done: std::result::Result<Result<SampleRef>, tokio::task::JoinError>| {
            done.expect("no panic").expect("served")
        };
        tokio::select! {
            d = &mut self.home => {
                self.at_home.use_up(&reserved(d)).await;
                self.in_line.use_up(&ended(self.line).await.expect("served")).await;
            }
            c = &mut self.line => {
                self.in_line.use_up(&reserved(c)).await;
                self.at_home.use_up(&ended(self.home).await.expect("served")).await;
            }
        }
        assert_eq!(self.world.books().paid, 0);
        assert!(self.world.keys_with("/p/").is_empty() && self.world.keys_with("/b/w/").is_empty());
    }
}

#[tokio::test]
async fn what_a_process_frees_is_handed_to_its_own() {
    let lively = Lively::new(WITHIN, WITHIN).await;
    let before = lively.who_waits();
    assert_eq!(before.len(), 1, "one is in the house, and has no key");
    lively.owner.use_up(&lively.sample).await;
    let d = ended(lively.home).await.expect("handed");
    assert_eq!(lively.world.keys_with("/b/w/"), before, "the line was not touched");
    assert_eq!(lively.world.books().paid, 10);
    lively.at_home.use_up(&d).await;
    let c = ended(lively.line).await.expect("nobody is in the house any more");
    lively.in_line.use_up(&c).await;
    assert_eq!(lively.world.books().paid, 0);
    assert!(lively.world.keys_with("/h/").is_empty(), "every note was struck out");
}

#[tokio::test]
async fn when_the_last_one_leaves_the_line_one_of_the_house_goes_there() {
    let lively = Lively::new(SOON, WITHIN).await;
    let before = lively.who_waits();
    assert_eq!(kind(ended(lively.line).await), ErrorKind::Capacity);
    lively.world.until_waiting(1).await;
    assert_ne!(lively.world.keys_with("/b/w/"), before);
    lively.owner.use_up(&lively.sample).await;
    let d = ended(lively.home).await.expect("served in the line");
    lively.at_home.use_up(&d).await;
    assert_eq!(lively.world.books().paid, 0);
}

#[tokio::test]
async fn who_is_given_up_in_the_house_is_handed_nothing() {
    let lively = Lively::new(WITHIN, WITHIN).await;
    lively.home.abort();
    assert!(lively.home.await.expect_err("given up").is_cancelled());
    lively.owner.use_up(&lively.sample).await;
    let c = ended(lively.line).await.expect("it was its turn");
    lively.in_line.use_up(&c).await;
    assert_eq!(lively.world.books().paid, 0);
    assert!(lively.world.keys_with("/p/").is_empty(), "nothing is reserved for it");
}

#[tokio::test]
async fn whoever_dies_in_the_house_is_handed_nothing() {
    let lively = Lively::new(WITHIN, WITHIN).await;
    assert!(lively.world.txn_store.expire(lively.at_home.session.id()));
    lively.owner.use_up(&lively.sample).await;
    assert_eq!(kind(ended(lively.home).await), ErrorKind::Fenced);
    let c = ended(lively.line).await.expect("it was its turn");
    lively.in_line.use_up(&c).await;
    assert_eq!(lively.world.books().paid, 0);
}

#[tokio::test]
async fn a_lost_reply_to_handing_over_is_found_out() {
    for fate in [Fate::Applied, Fate::NotApplied] {
        let lively = Lively::new(WITHIN, WITHIN).await;
        lively.owner.commit(&lively.sample).await.expect("committed");
        lively.owner.consume(&lively.sample).await.expect("consumed");
        lively.owner.txn_store.faults().lose_reply(fate);
        lively.owner.freed(&lively.sample).await.expect("freed");
        lively.both_are_served().await;
    }
}

/// Whoever frees does not learn in time whether it has handed over. It has, or does so later: the one who waited finds its
/// own reservation.
#[tokio::test]
async fn an_unclear_handing_over_is_found_by_the_one_who_waited() {
    for fate in [Fate::Applied, Fate::Later] {
        let lively = Lively::new(WITHIN, SOON * 3).await;
        let Lively { owner, sample, .. } = &lively;
        owner.commit(sample).await.expect("committed");
        owner.consume(sample).await.expect("consumed");
        let faults = owner.txn_store.faults();
        faults.lose_reply(fate);
        faults.slow(SOON);
        // Long enough for the transaction, too short to find out what became of it.
        let freed = tokio::time::timeout(SOON * 3 / 2, owner.freed(sample)).await;
        assert!(freed.is_err(), "{fate:?}: given up");
        faults.slow(Duration::ZERO);
        owner.txn_store.land();
        lively.both_are_served().await;
    }
}

/// The same, but it is told that it is unclear, because its time is up.
#[tokio::test]
async fn what_is_unclear_at_the_deadline_is_found_by_the_one_who_waited() {
    let lively = Lively::new(WITHIN * 100, WITHIN * 100).await;
    let Lively { owner, sample, .. } = &lively;
    owner.commit(sample).await.expect("committed");
    owner.consume(sample).await.expect("consumed");
    owner.txn_store.faults().lose_reply(Fate::Applied);
    owner.txn_store.faults().slow(SOON);
    let (freed, ()) = tokio::join!(owner.freed(sample), async {
        tokio::time::sleep(SOON * 3 / 2).await;
        lively.clock.advance(WITHIN * 2);
    });
    assert_eq!(freed.expect_err("the time is up").retry(), Retry::Ambiguous);
    owner.txn_store.faults().slow(Duration::ZERO);
    lively.both_are_served().await;
}

/// Two processes, of which one frees at first and then no more: those in its house go to the line, and are served there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_vain_in_the_house_is_served_by_another_process() {
    let world = World::with_budget(10).await;
    let (first, elsewhere) = (world.join_drawing(1).await, world.join().await);
    let a = first.reserve("a", 10, WITHIN).await.expect("fits");
    let mut all = Vec::new();
    for (number, client) in [first.another().await, first.another().await, elsewhere.another().await]
        .into_iter()
        .enumerate()
    {
        let elsewhere = Arc::clone(&elsewhere);
        all.push(tokio::spawn(async move {
            let sample = client.reserve(&format!("b{number}"), 10, WITHIN).await.expect("served");
            client.commit(&sample).await.expect("committed");
            elsewhere.consume(&sample).await.expect("consumed");
            elsewhere.freed(&sample).await.expect("freed");
        }));
    }
    first.use_up(&a).await;
    for one in all {
        ended(one).await;
    }
    assert_eq!(world.books().paid, 0);
    assert!(world.keys_with("/b/w/").is_empty());
}
