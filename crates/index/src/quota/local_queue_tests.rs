use holdfast_core::{ManualClock, Nonce, SampleId, SeededRng, StoreId, SystemClock};

use super::*;
use crate::index::TxnIndex;
use crate::quota::serve::Giver;
use crate::record::types::Reserve;
use crate::store::Condition;
use crate::store::memory::MemoryStore;
use crate::txn::IndexConfig;
use crate::txn::batch::{Moved, QuotaBudget};

const LONG: Duration = Duration::from_secs(10);

fn want(bytes: u64) -> WaitRequest {
    WaitRequest::of(&[Reserve {
        sample: SampleId::new(format!("s{bytes}")).expect("a name"),
        nonce: Nonce::from_u64(1),
        bytes,
        plan: String::new(),
        claims: Vec::new(),
    }])
}

/// A house in which something has just been freed, and one of whose is in the line.
fn lively() -> (Arc<LocalQueue>, ManualClock, InLine) {
    let (house, clock) = (Arc::new(LocalQueue::default()), ManualClock::new());
    let in_line = house
        .enter(SessionId(1), &want(1), &clock)
        .expect_err("it is the first");
    house.frees(1, &clock);
    (house, clock, in_line)
}

fn enter(house: &Arc<LocalQueue>, bytes: u64, clock: &ManualClock) -> LocalWait {
    house.enter(SessionId(bytes), &want(bytes), clock).expect("lively")
}

/// Takes along whoever `bytes` are enough for, with room for `most`.
fn taken(house: &Arc<LocalQueue>, bytes: u64, most: usize) -> Vec<u64> {
    let mut room = most;
    let taken = house.take_along(bytes, |_, _| {
        let fits = room > 0;
        room = room.saturating_sub(1);
        Ok::<_, std::convert::Infallible>(fits.then(|| (Tick(1), "note".to_owned())))
    });
    let Ok(taken) = taken;
    let bytes = taken.iter().map(|taken| taken.bytes).collect();
    taken.into_iter().for_each(|taken| taken.reserved(Version(7)));
    bytes
}

async fn reserved(stay: LocalWait, clock: &ManualClock) -> bool {
    matches!(
        stay.handed(LONG, &CancellationToken::new(), clock).await,
        Handed::Reserved {
            version: Version(7),
            ..
        }
    )
}

async fn goes_to_the_line(stay: LocalWait, clock: &ManualClock) -> bool {
    matches!(
        stay.handed(LONG, &CancellationToken::new(), clock).await,
        Handed::ToTheLine(_)
    )
}

#[test]
fn nobody_stays_where_nothing_is_freed_or_nobody_is_in_the_line() {
    let (house, clock, in_line) = lively();
    let stay = enter(&house, 2, &clock);
    drop(stay);
    clock.advance(LATELY * 2);
    let another = house
        .enter(SessionId(3), &want(3), &clock)
        .expect_err("nothing was freed lately");
    house.frees(1, &clock);
    drop((in_line, another));
    let alone = house.enter(SessionId(4), &want(4), &clock);
    assert!(alone.is_err(), "somebody must be in the line");
}

#[test]
fn everybody_who_comes_at_once_stays_if_something_was_freed_of_late() {
    let (house, clock, in_line) = lively();
    drop(in_line);
    clock.advance(OF_LATE / 2);
    let first = house
        .enter(SessionId(2), &want(2), &clock)
        .expect_err("the first after a while");
    let stay = enter(&house, 3, &clock);
    clock.advance(LATELY * 2);
    let late = house.enter(SessionId(4), &want(4), &clock);
    assert!(late.is_err(), "nothing came");
    drop((first, stay));
}

#[test]
fn nobody_begins_to_wait_for_long() {
    let (house, clock, _in_line) = lively();
    let mut stays = Vec::new();
    // One every 30 ms: the seventh would wait for more than half of the longest time.
    for _ in 0..40 {
        clock.advance(Duration::from_millis(30));
        house.frees(1, &clock);
    }
    while let Ok(stay) = house.enter(SessionId(9), &want(9), &clock) {
        stays.push(stay);
    }
    assert_eq!(stays.len(), 6);
}

#[tokio::test]
async fn who_came_first_is_served_first_and_what_is_too_large_goes_to_the_line() {
    let (house, clock, _in_line) = lively();
    let [large, small, tiny, last] = [9, 3, 1, 2].map(|bytes| enter(&house, bytes, &clock));
    assert_eq!(taken(&house, 5, 9), [3, 1], "the last one's two are not there any more");
    assert!(goes_to_the_line(large, &clock).await);
    assert!(reserved(small, &clock).await && reserved(tiny, &clock).await);
    // It was too large for the one byte that was left.
    assert!(goes_to_the_line(last, &clock).await);
}

#[tokio::test]
async fn without_room_for_one_it_waits_for_the_next_unless_it_is_the_first() {
    let (house, clock, _in_line) = lively();
    let [first, second] = [1, 2].map(|bytes| enter(&house, bytes, &clock));
    assert_eq!(taken(&house, 9, 1), [1]);
    assert!(reserved(first, &clock).await);
    assert_eq!(taken(&house, 9, 0), [0_u64; 0], "it would never fit");
    assert!(goes_to_the_line(second, &clock).await);
}

#[tokio::test]
async fn who_came_last_goes_to_the_line_when_the_last_one_leaves_it() {
    let (house, clock, in_line) = lively();
    let [first, second] = [1, 2].map(|bytes| enter(&house, bytes, &clock));
    drop(in_line);
    let Handed::ToTheLine(in_line) = second.handed(LONG, &CancellationToken::new(), &clock).await else {
        panic!("it stays");
    };
    assert!(house.is_in_line() && !house.is_empty(), "the first one stays");
    drop(in_line);
    assert!(goes_to_the_line(first, &clock).await);
    assert!(!house.is_in_line());
}

#[tokio::test]
async fn a_stay_ends() {
    let (house, clock, _in_line) = lively();
    let impatient = enter(&house, 1, &clock);
    assert!(matches!(
        impatient
            .handed(Duration::ZERO, &CancellationToken::new(), &clock)
            .await,
        Handed::TooLate
    ));
    let left_alone = enter(&house, 2, &clock);
    clock.advance(LATELY * 2);
    assert!(goes_to_the_line(left_alone, &clock).await, "nothing is freed any more");
    house.frees(1, &clock);
    let long = enter(&house, 3, &clock);
    clock.advance(LONGEST);
    house.frees(1, &clock);
    assert!(goes_to_the_line(long, &clock).await, "it has been long");
    let forgotten = enter(&house, 4, &clock);
    let Ok(taken) = house.take_along(9, |_, _| {
        Ok::<_, std::convert::Infallible>(Some((Tick(1), String::new())))
    });
    drop(taken);
    assert!(matches!(
        forgotten.handed(LONG, &CancellationToken::new(), &clock).await,
        Handed::Unclear(_)
    ));
}

#[test]
fn the_line_has_its_share() {
    let (house, clock, in_line) = lively();
    let rng = SeededRng::new(1);
    assert!(house.serves_line(0, &rng), "nobody is in the house");
    let _stays: Vec<LocalWait> = (0..6).map(|_| enter(&house, 1, &clock)).collect();
    let share = |there| (0..1000).filter(|_| house.serves_line(there, &rng)).count();
    let once_in = |times: u32| 1000 / usize::try_from(times).expect("a small number");
    assert_eq!(share(0), once_in(LINE_AT_LEAST + 1), "not passed over for ever");
    let half = share(6);
    assert!((450..600).contains(&half), "as many there as here: {half}");
    let _more: Vec<InLine> = (0..FEW).map(|_| house.goes_to_the_line(&clock)).collect();
    assert_eq!(share(0), 1000, "those in the line came before");
    drop(in_line);
}

/// Whoever waited notices the end of its session by itself, as a rule; the store knows it before.
#[tokio::test]
async fn one_is_served_on_condition_that_its_session_is_alive_and_the_clock_stands_still() {
    let clock = Arc::new(ManualClock::new());
    let txn_store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new())));
    let store = StoreId::new("house").expect("a name");
    let index = TxnIndex::new(
        txn_store,
        &store,
        IndexConfig::default(),
        Arc::clone(&clock) as Arc<dyn Clock>,
        Arc::new(SeededRng::new(1)),
    );
    let session = index.open(LONG).await.expect("a session");
    let _in_line = index.quota.local_queue().enter(SessionId(1), &want(1), &*clock);
    index.quota.local_queue().frees(1, &*clock);
    let _stay = enter(index.quota.local_queue(), 5, &clock);
    let giver = Giver {
        session: &session,
        quota: &index.quota,
    };
    let (mut moved, mut room) = (
        Moved::default(),
        QuotaBudget {
            operations: 9,
            bytes: 9999,
        },
    );
    let taken = giver.serve_house(5, (Tick(1), Version(3)), &mut moved, &mut room);
    assert_eq!(taken.expect("nothing is in the way").len(), 1);
    let layout = index.core.layout();
    for condition in [
        Condition::Present(layout.alive(SessionId(5))),
        Condition::Unchanged(layout.clock(), Version(3)),
        Condition::Absent(layout.pending(&want(5).samples[0].sample)),
    ] {
        assert!(moved.conditions.contains(&condition), "{condition:?} of {moved:?}");
    }
}
