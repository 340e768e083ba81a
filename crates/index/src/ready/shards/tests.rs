use tensorhold_core::{Clock, Generation, ManualClock, SampleId};

use super::*;

fn found(name: &str) -> ReadyEntry {
    let sample = SampleRef {
        sample: SampleId::new(name).expect("a name"),
        generation: Generation::new(1).expect("a generation"),
    };
    ReadyEntry::from(&sample)
}

fn names(reached: &Reached) -> Vec<&str> {
    reached.iter().map(|found| found.sample.sample.as_str()).collect()
}

#[test]
fn what_was_seen_is_taken_once_and_only_while_it_is_fresh() {
    let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
    assert!(list.take(1, clock.now(), false).is_none());
    list.leave([found("a"), found("b"), found("c")], clock.now());
    assert_eq!(names(&list.take(2, clock.now(), false).expect("fresh")), ["a", "b"]);
    clock.advance(2 * FRESH);
    assert!(list.take(2, clock.now(), false).is_none(), "too old");
    list.leave([found("c")], clock.now());
    assert_eq!(names(&list.take(2, clock.now(), false).expect("seen anew")), ["c"]);
}

#[test]
fn less_than_is_asked_for_is_taken_only_when_there_is_no_more_to_see() {
    let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
    list.leave([found("a"), found("b")], clock.now());
    assert!(list.take(3, clock.now(), true).is_none());
    assert_eq!(names(&list.take(3, clock.now(), false).expect("two")), ["a", "b"]);
}

#[test]
fn what_somebody_reaches_for_is_not_found_by_another() {
    let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
    list.leave([found("a"), found("b")], clock.now());
    let reached = list.take(1, clock.now(), false).expect("one");
    list.leave([found("a"), found("b"), found("c")], clock.now());
    assert_eq!(names(&list.take(9, clock.now(), false).expect("the rest")), ["b", "c"]);
    drop(reached);
    list.leave([found("a")], clock.now());
    assert_eq!(
        names(&list.take(9, clock.now(), false).expect("it was given up")),
        ["a"]
    );
}

fn numbers(look: &ShardScan) -> Vec<u64> {
    look.shards.iter().map(|shard| shard.number).collect()
}

fn shard(number: u64) -> Shard {
    Shard { number, after: None }
}

#[test]
fn more_is_seen_at_once_as_long_as_it_is_all_taken() {
    let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
    let seen = |list: &ReadyList| list.next(1, 0, clock.now()).of_each;
    assert_eq!([seen(&list), seen(&list), seen(&list)], [1, 2, 4]);
    list.leave([found("a")], clock.now());
    clock.advance(2 * FRESH);
    assert!(list.take(1, clock.now(), false).is_none());
    assert_eq!(seen(&list), 4, "half of it was enough");
    assert_eq!(
        list.next(64, 0, clock.now()).of_each,
        64,
        "never less than is asked for"
    );
}

#[test]
fn the_less_there_is_in_a_lane_the_more_lanes_are_looked_into() {
    let (clock, list) = (ManualClock::new(), ReadyList::default());
    let look = list.next(8, 0, clock.now());
    assert_eq!((numbers(&look).as_slice(), look.of_each), ([0].as_slice(), 8));
    list.saw(vec![(shard(0), Saw::All(None))], (3, 8), clock.now());
    list.saw(vec![(shard(1), Saw::All(None))], (3, 8), clock.now());
    let look = list.next(8, 0, clock.now());
    assert_eq!((numbers(&look).as_slice(), look.of_each), ([2, 3].as_slice(), 4));
    list.saw(
        vec![(shard(2), Saw::All(None)), (shard(3), Saw::All(None))],
        (7, 8),
        clock.now(),
    );
    assert_eq!(numbers(&list.next(8, 0, clock.now())), [4, 5], "that was enough");
    let more = Saw::UpTo("key".to_owned());
    list.saw(vec![(shard(4), more), (shard(5), Saw::All(None))], (5, 8), clock.now());
    assert_eq!(numbers(&list.next(8, 0, clock.now())), [4]);
}

fn after(shard: &Shard) -> Option<&str> {
    shard.after.as_ref().map(|seen| seen.key.as_str())
}

#[test]
fn a_look_goes_on_where_the_last_one_ended_until_it_is_time_to_begin_at_the_start() {
    let (clock, mut shards) = (ManualClock::new(), Shards::default());
    let from = |shards: &mut Shards| shards.next(0, 1, clock.now()).remove(0);
    shards.saw(shard(0), Saw::UpTo("a".to_owned()), clock.now());
    clock.advance(FROM_THE_START);
    let again = from(&mut shards);
    assert_eq!(after(&again), Some("a"));
    shards.saw(again, Saw::UpTo("b".to_owned()), clock.now());
    clock.advance(FRESH);
    assert_eq!(from(&mut shards), shard(0), "what came back meanwhile lies before");
}

#[test]
fn what_was_seen_and_given_up_is_seen_again() {
    let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
    let number = u64::from(shard_of(&found("a").sample.sample));
    list.leave([found("a")], clock.now());
    list.saw(vec![(shard(number), Saw::UpTo("a".to_owned()))], (1, 1), clock.now());
    let next = || list.next(1, number, clock.now()).shards.remove(0);
    assert_eq!(after(&next()), Some("a"));
    clock.advance(2 * FRESH);
    assert!(list.take(1, clock.now(), false).is_none(), "too old");
    assert_eq!(next(), shard(number), "from the start, where it lies");
}

#[test]
fn where_a_lane_ended_is_remembered() {
    let (now, list) = (ManualClock::new().now(), ReadyList::default());
    list.saw(
        vec![(shard(0), Saw::All(Some("a".to_owned()))), (shard(1), Saw::All(None))],
        (1, 1),
        now,
    );
    let shards = list.further();
    assert_eq!(
        (shards.len() as u64, after(&shards[0]), after(&shards[1])),
        (SHARDS, Some("a"), None)
    );
    list.saw(vec![(shards[0].clone(), Saw::All(None))], (0, 1), now);
    assert_eq!(after(&list.further()[0]), Some("a"), "nothing came after it");
    list.saw(vec![(shard(0), Saw::All(None))], (0, 1), now);
    assert_eq!(
        after(&list.further()[0]),
        Some("a"),
        "what is new lies behind it even so"
    );
}

#[test]
fn a_lane_that_had_nothing_is_passed_over_for_a_while() {
    let (now, mut shards) = (ManualClock::new().now(), Shards::default());
    assert_eq!(shards.next(3, 1, now), [shard(3)]);
    shards.saw(shard(3), Saw::All(None), now);
    assert_eq!(shards.next(3, 1, now), [shard(4)]);
    for _ in 0..PASSED_OVER {
        shards.next(5, 1, now);
    }
    assert_eq!(shards.next(3, 1, now), [shard(3)], "it gets its look again");
}

#[test]
fn no_lane_is_worth_a_look_when_all_had_nothing() {
    let (now, mut shards) = (ManualClock::new().now(), Shards::default());
    (0..SHARDS).for_each(|number| shards.saw(shard(number), Saw::All(None), now));
    assert!(shards.next(0, 9, now).is_empty());
    shards.saw(shard(7), Saw::UpTo("key".to_owned()), now);
    assert_eq!(shards.next(0, 9, now).len(), 1);
}
