//! Every transition of a sample, legal and illegal, one at a time.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail loudly")]

use tensorhold_core::{Error, ErrorKind, Generation, Nonce, Retry};
use tensorhold_custody::{
    Acknowledged, GroupName, Live, Progress, Publication, Reason, Reserved, Retired, SessionId, Sweep, Tick, Token,
    Verdict, Version,
};

const PRODUCER: SessionId = SessionId(1);
const WORKER: SessionId = SessionId(2);
const OTHER: SessionId = SessionId(3);

fn group(name: &str) -> GroupName {
    GroupName::new(name).expect("a good name")
}

fn reserved() -> Reserved {
    let mut record = Reserved::new(PRODUCER, Nonce::from_u64(7), 100, Tick(5));
    record.settle(Version(3));
    record
}

fn generation() -> Generation {
    Generation::new(3).expect("not zero")
}

fn live(groups: &[&str], retain: bool, max_attempts: u32) -> Live {
    let groups = groups.iter().map(|name| group(name)).collect();
    let publication = Publication {
        groups,
        retain,
        max_attempts,
    };
    reserved()
        .commit(PRODUCER, generation(), &publication)
        .expect("committed")
}

/// Writes a record as the index does: the leases it grants get the version as their token.
fn written(mut live: Live, version: u64) -> Live {
    live.settle(Version(version));
    live
}

fn leased(live: Live, name: &str, version: u64) -> Live {
    written(live.lease(&group(name), WORKER, Tick(10)).expect("leased"), version)
}

fn still_live(after: Acknowledged) -> Live {
    match after {
        Acknowledged::Live(live) => live,
        Acknowledged::Retired(retired) => panic!("it has retired: {retired:?}"),
    }
}

fn now_retired(after: Acknowledged) -> Retired {
    match after {
        Acknowledged::Retired(retired) => retired,
        Acknowledged::Live(live) => panic!("it is still live: {live:?}"),
    }
}

fn assert_kind<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind) {
    assert_eq!(result.expect_err("refused").kind(), kind);
}

fn sweep_at<T>(tick: u64, gone: &[SessionId], what: impl FnOnce(&Sweep<'_>) -> T) -> T {
    what(&Sweep {
        tick: Tick(tick),
        grace: 2,
        gone: &|session| gone.contains(&session),
    })
}

#[test]
fn a_generation_is_the_version_of_the_write_that_reserved_it_and_stays() {
    let mut record = reserved();
    record.settle(Version(9));
    assert_eq!(record.generation, Some(generation()));
}

#[test]
fn only_the_session_and_generation_that_reserved_may_commit() {
    let publication = Publication {
        groups: vec![group("a")],
        retain: false,
        max_attempts: 1,
    };
    let later = Generation::new(4).expect("not zero");
    assert_kind(reserved().commit(OTHER, generation(), &publication), ErrorKind::Fenced);
    assert_kind(reserved().commit(PRODUCER, later, &publication), ErrorKind::Fenced);
    let unsettled = Reserved::new(PRODUCER, Nonce::from_u64(7), 1, Tick(5));
    assert_kind(
        unsettled.commit(PRODUCER, generation(), &publication),
        ErrorKind::Fenced,
    );
    assert!(reserved().commit(PRODUCER, generation(), &publication).is_ok());
}

#[test]
fn a_publication_must_make_sense() {
    let refused = |names: &[&str], max_attempts| {
        let groups = names.iter().map(|name| group(name)).collect();
        let publication = Publication {
            groups,
            retain: false,
            max_attempts,
        };
        assert_kind(
            reserved().commit(PRODUCER, generation(), &publication),
            ErrorKind::Invalid,
        );
    };
    refused(&["a"], 0);
    refused(&["a", "b", "a"], 1);
    let sorted = live(&["b", "a"], false, 1);
    let names: Vec<_> = sorted.groups.iter().map(|state| state.group.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn an_aborted_reservation_can_be_freed_at_once_and_keeps_what_it_owes() {
    let retired = reserved().abort(Reason::Aborted);
    assert!(retired.may_be_freed());
    assert_eq!(
        (retired.generation, retired.producer, retired.bytes),
        (Some(generation()), PRODUCER, 100)
    );
}

#[test]
fn a_group_takes_a_sample_once_at_a_time() {
    let taken = leased(live(&["a", "b"], false, 3), "a", 11);
    let error = taken.clone().lease(&group("a"), OTHER, Tick(10)).expect_err("taken");
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Conflict, Retry::Never));
    assert_kind(taken.clone().lease(&group("c"), OTHER, Tick(10)), ErrorKind::NotFound);
    assert!(taken.lease(&group("b"), OTHER, Tick(10)).is_ok());
}

#[test]
fn a_token_is_the_version_of_the_write_that_granted_it_and_later_writes_leave_it() {
    let taken = written(leased(live(&["a", "b"], false, 3), "a", 11), 12);
    assert!(taken.holds(Token(11)) && !taken.holds(Token(12)));
    let both = leased(taken, "b", 13);
    assert!(both.holds(Token(11)) && both.holds(Token(13)));
}

#[test]
fn a_lease_that_is_not_written_yet_is_held_by_nobody() {
    let taken = live(&["a"], false, 1)
        .lease(&group("a"), WORKER, Tick(10))
        .expect("leased");
    assert!(!taken.holds(Token::THIS_WRITE));
    assert_kind(taken.clone().ack(&group("a"), Token::THIS_WRITE), ErrorKind::Fenced);
    assert_kind(taken.clone().nack(&group("a"), Token::THIS_WRITE), ErrorKind::Fenced);
    assert_kind(taken.renew(Token::THIS_WRITE, Tick(99)), ErrorKind::Fenced);
    let read = live(&[], false, 1).read(WORKER, Tick(10));
    assert_kind(read.clone().release(Token::THIS_WRITE), ErrorKind::Fenced);
    let retired = read.retire(Reason::Aborted);
    assert!(!retired.holds(Token::THIS_WRITE));
    assert_kind(retired.release(Token::THIS_WRITE), ErrorKind::Fenced);
}

#[test]
fn a_stale_token_is_fenced_whatever_it_is_used_for() {
    let taken = leased(live(&["a", "b"], false, 3), "a", 11);
    let stale = Token(10);
    assert_kind(taken.clone().ack(&group("a"), stale), ErrorKind::Fenced);
    assert_kind(taken.clone().nack(&group("a"), stale), ErrorKind::Fenced);
    assert_kind(taken.clone().renew(stale, Tick(99)), ErrorKind::Fenced);
    assert_kind(taken.clone().release(stale), ErrorKind::Fenced);
    assert_kind(taken.clone().ack(&group("b"), Token(11)), ErrorKind::Fenced);
    assert_kind(taken.clone().ack(&group("c"), Token(11)), ErrorKind::NotFound);
    assert_kind(taken.clone().release(Token(11)), ErrorKind::Fenced);
    assert_kind(taken.retire(Reason::Lost).release(stale), ErrorKind::Fenced);
}

#[test]
fn a_second_ack_is_fenced() {
    let taken = leased(live(&["a", "b"], false, 3), "a", 11);
    let acked = still_live(taken.ack(&group("a"), Token(11)).expect("acknowledged"));
    assert_kind(acked.clone().ack(&group("a"), Token(11)), ErrorKind::Fenced);
    assert_kind(acked.clone().nack(&group("a"), Token(11)), ErrorKind::Fenced);
    assert_kind(acked.lease(&group("a"), WORKER, Tick(10)), ErrorKind::Conflict);
}

#[test]
fn the_last_group_to_acknowledge_retires_it() {
    let both = leased(leased(live(&["a", "b"], false, 3), "a", 11), "b", 12);
    let one = still_live(both.ack(&group("b"), Token(12)).expect("acknowledged"));
    let retired = now_retired(one.ack(&group("a"), Token(11)).expect("acknowledged"));
    assert_eq!((retired.reason, retired.may_be_freed()), (Reason::Consumed, true));
}

#[test]
fn attempts_are_counted_when_taken_and_the_last_one_makes_a_dead_letter() {
    let mut sample = live(&["a"], false, 3);
    for attempt in 1..=3_u32 {
        let version = u64::from(attempt) + 10;
        sample = leased(sample, "a", version);
        assert_eq!(sample.groups[0].attempts, attempt);
        match sample.nack(&group("a"), Token(version)).expect("handed back") {
            Acknowledged::Live(next) => {
                assert!(attempt < 3);
                assert_eq!(next.groups[0].progress, Progress::Waiting);
                sample = next;
            }
            Acknowledged::Retired(retired) => {
                assert_eq!((attempt, retired.reason), (3, Reason::DeadLetter));
                return;
            }
        }
    }
    panic!("three attempts, no dead letter");
}

#[test]
fn a_take_that_is_undone_leaves_the_sample_as_it_was() {
    let before = live(&["a", "b"], false, 1);
    let taken = leased(before.clone(), "a", 5);
    assert_eq!(taken.clone().give_back(&group("a"), Token(5)).expect("held"), before);
    assert_kind(taken.clone().give_back(&group("a"), Token(4)), ErrorKind::Fenced);
    assert_kind(taken.give_back(&group("b"), Token(5)), ErrorKind::Fenced);
}

#[test]
fn a_group_that_is_given_up_on_does_not_take_it_from_the_others() {
    let taken = leased(live(&["a", "b"], false, 1), "a", 11);
    let given_up = still_live(taken.nack(&group("a"), Token(11)).expect("handed back"));
    assert_eq!(given_up.groups[0].progress, Progress::Dead);
    let last = leased(given_up, "b", 12)
        .ack(&group("b"), Token(12))
        .expect("acknowledged");
    assert_eq!(now_retired(last).reason, Reason::DeadLetter);
}

#[test]
fn a_renewal_keeps_the_token_and_never_shortens() {
    let taken = leased(live(&["a"], false, 3), "a", 11);
    let longer = taken.renew(Token(11), Tick(20)).expect("renewed");
    let same = written(longer.renew(Token(11), Tick(15)).expect("renewed"), 12);
    let until: Vec<_> = same.leases().map(|lease| (lease.token, lease.until)).collect();
    assert_eq!(until, [(Token(11), Tick(20))]);
}

#[test]
fn a_retained_sample_stays_until_it_is_opened_again_or_retired_by_hand() {
    let done = leased(live(&["a", "b"], true, 1), "a", 11).ack(&group("a"), Token(11));
    let done = leased(still_live(done.expect("acknowledged")), "b", 12).nack(&group("b"), Token(12));
    let done = still_live(done.expect("handed back"));
    let opened = done.clone().reopen();
    let all_waiting =
        |state: &tensorhold_custody::GroupState| (state.attempts, state.progress) == (0, Progress::Waiting);
    assert!(opened.groups.iter().all(all_waiting));
    assert_eq!(done.retire(Reason::Aborted).reason, Reason::Aborted);
    let busy = leased(opened, "a", 13);
    assert_eq!(busy.clone().reopen(), busy, "who works on it goes on");
}

#[test]
fn a_sample_without_groups_stays_until_it_is_retired() {
    let sample = written(live(&[], false, 1).read(WORKER, Tick(10)), 11);
    let Verdict::Become(after) = sweep_at(13, &[], |sweep| sample.sweep(sweep)) else {
        panic!("the reader's time is over");
    };
    assert!(still_live(after).readers.is_empty());
}

#[test]
fn the_last_reader_that_uses_a_sample_up_retires_it() {
    let sample = written(live(&[], false, 1).read(WORKER, Tick(10)), 11);
    let both = written(sample.read(OTHER, Tick(10)), 12);
    assert_kind(both.clone().use_up(Token(10)), ErrorKind::Fenced);
    let one = still_live(both.use_up(Token(11)).expect("used up"));
    assert_kind(one.clone().use_up(Token(11)), ErrorKind::Fenced);
    let retired = now_retired(one.use_up(Token(12)).expect("used up"));
    assert_eq!((retired.reason, retired.may_be_freed()), (Reason::Aborted, true));
}

#[test]
fn a_reader_does_not_use_up_what_is_for_groups_or_retained() {
    for sample in [live(&["a"], false, 1), live(&[], true, 1)] {
        let read = written(sample.clone().read(WORKER, Tick(10)), 11);
        assert_eq!(still_live(read.use_up(Token(11)).expect("used up")), sample);
    }
}

#[test]
fn a_superseded_sample_keeps_its_objects_until_its_last_reader_lets_go() {
    let sample = leased(live(&["a"], false, 3), "a", 11);
    let sample = written(sample.read(OTHER, Tick(10)), 12);
    let retired = sample.retire(Reason::Superseded);
    assert!(retired.holds(Token(11)) && retired.holds(Token(12)) && !retired.may_be_freed());
    let one = retired.release(Token(12)).expect("let go");
    assert_kind(one.clone().release(Token(12)), ErrorKind::Fenced);
    let none = one.release(Token(11)).expect("let go");
    assert!(none.may_be_freed() && !none.holds(Token(11)));
    assert_eq!(none.free_failed().failed_frees, 1);
}

#[test]
fn a_sweep_leaves_what_is_not_over_and_takes_what_is() {
    let reservation = reserved();
    assert_eq!(sweep_at(7, &[WORKER], |sweep| reservation.sweep(sweep)), Verdict::Leave);
    for (tick, gone) in [(8, vec![]), (0, vec![PRODUCER])] {
        let verdict = sweep_at(tick, &gone, |sweep| reservation.sweep(sweep));
        assert_eq!(verdict, Verdict::Become(reservation.clone().abort(Reason::Abandoned)));
    }
    let taken = leased(live(&["a"], false, 2), "a", 11);
    assert_eq!(
        sweep_at(12, &[PRODUCER, OTHER], |sweep| taken.sweep(sweep)),
        Verdict::Leave
    );
    for (tick, gone) in [(13, vec![]), (0, vec![WORKER])] {
        let Verdict::Become(after) = sweep_at(tick, &gone, |sweep| taken.sweep(sweep)) else {
            panic!("its lease is over");
        };
        let after = still_live(after);
        assert_eq!(
            (after.groups[0].attempts, after.groups[0].progress),
            (1, Progress::Waiting)
        );
        assert_eq!(
            sweep_at(tick, &gone, |sweep| after.sweep(sweep)),
            Verdict::Leave,
            "twice is once"
        );
    }
    let retired = taken.retire(Reason::Lost);
    assert_eq!(sweep_at(12, &[], |sweep| retired.sweep(sweep)), Verdict::Leave);
    let Verdict::Become(after) = sweep_at(13, &[], |sweep| retired.sweep(sweep)) else {
        panic!("its reader is over");
    };
    assert!(after.may_be_freed());
    assert_eq!(
        sweep_at(13, &[], |sweep| after.sweep(sweep)),
        Verdict::Leave,
        "twice is once"
    );
}
