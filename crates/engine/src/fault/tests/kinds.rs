//! Each kind of fault, alone.

use super::*;

#[test]
fn a_lost_reply_is_of_a_call_that_was_done() {
    let bench = Bench::new(FaultPlan::new(1).with_lost_reply(1000));
    unavailable(&bench.put(2).expect_err("lost"), Retry::Ambiguous);
    assert_eq!(bench.cluster.objects(), bench.keys(2));
    unavailable(&bench.get(2).expect_err("lost"), Retry::Safe);
    let removed = bench.engine.remove(&bench.keys(1), WITHIN);
    unavailable(&removed.expect_err("lost"), Retry::Ambiguous);
    assert_eq!(bench.cluster.objects(), [key(1)]);
    assert_eq!(bench.effects(), [Effect::ReplyLost; 3]);
}

#[test]
fn a_lost_request_is_of_a_call_that_was_not_done() {
    let bench = Bench::new(FaultPlan::new(1).with_lost_request(1000));
    unavailable(&bench.put(2).expect_err("lost"), Retry::Ambiguous);
    assert!(bench.cluster.objects().is_empty());
    unavailable(
        &bench.engine.probe(&bench.keys(1), WITHIN).expect_err("lost"),
        Retry::Safe,
    );
    assert_eq!(bench.effects(), [Effect::RequestLost; 2]);
    assert_eq!(
        bench.engine.faults()[0].to_string(),
        "call 0, put: the request was lost"
    );
}

#[test]
fn a_delay_passes_on_the_clock_and_ends_at_the_deadline() {
    let bench = Bench::new(FaultPlan::new(2).with_delay(1000, Duration::from_secs(2)));
    let (mut in_time, mut late) = (0, 0);
    for _ in 0..50 {
        use tensorhold_core::Clock;
        let before = bench.clock.now();
        let result = bench.engine.usage(WITHIN);
        let took = bench.clock.now().since(before);
        match (result, bench.effects().last()) {
            (Ok(_), Some(Effect::Delayed(by))) => {
                assert_eq!(took, *by);
                assert!(took < WITHIN);
                in_time += 1;
            }
            (Err(error), Some(Effect::TooLate(by))) => {
                unavailable(&error, Retry::Safe);
                assert!(*by >= WITHIN);
                assert_eq!(took, WITHIN);
                late += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(in_time > 10 && late > 10, "{in_time} in time, {late} late");
}

#[test]
fn a_short_read_tells_a_smaller_length_and_leaves_a_foreign_tail() {
    let bench = Bench::new(FaultPlan::new(3).with_short_read(1000));
    bench.fill(1);
    let outcomes = bench.get(1).expect("answered");
    let [GetOutcome::WrongLength { stored }] = outcomes[..] else {
        panic!("{outcomes:?}");
    };
    let at = usize::try_from(stored).expect("small");
    assert!(0 < at && at < LEN);
    let bytes = bench.region.whole().to_vec();
    assert!(bytes[..at].iter().all(|byte| *byte == 7));
    assert!(bytes[at..].iter().all(|byte| *byte != 7));
    assert_eq!(bench.effects(), [Effect::ReadShort { stored }]);
}

#[test]
fn torn_bytes_are_loaded_and_wrong() {
    let bench = Bench::new(FaultPlan::new(4).with_torn_bytes(1000));
    bench.fill(2);
    let outcomes = bench.get(2).expect("answered");
    assert!(matches!(outcomes[..], [GetOutcome::Loaded, GetOutcome::Loaded]));
    let bytes = bench.region.whole().to_vec();
    let wrong: Vec<usize> = (0..LEN).filter(|i| bytes[*i] != 7).collect();
    let mut told = Vec::new();
    for fault in bench.engine.faults() {
        let (Effect::Torn { at, len }, Some(item)) = (fault.effect, fault.item) else {
            panic!("{fault}");
        };
        let start = item * LEN / 2 + usize::try_from(at).expect("small");
        told.extend(start..start + usize::try_from(len).expect("small"));
    }
    assert_eq!(wrong, told);
    let missing = bench.engine.get_one(&key(9), &bench.region.whole(), WITHIN);
    assert!(
        matches!(missing.expect("answered"), GetOutcome::Miss),
        "a miss stays one"
    );
}

#[test]
fn a_partial_batch_passes_on_some_and_at_least_one() {
    for rate in [300, 1000] {
        let bench = Bench::new(FaultPlan::new(5).with_partial_batch(rate));
        let outcomes = bench.put(10).expect("answered");
        let stored: Vec<_> = (0..10)
            .filter(|i| matches!(outcomes[*i], PutOutcome::Stored))
            .map(key)
            .collect();
        assert_eq!(bench.cluster.objects(), stored);
        assert!((1..10).contains(&stored.len()), "{stored:?}");
        for outcome in &outcomes {
            if let PutOutcome::Failed(error) = outcome {
                unavailable(error, Retry::Ambiguous);
            }
        }
        assert_eq!(bench.effects(), vec![Effect::Withheld; 10 - stored.len()]);
        let alone = bench.put(1).expect("answered");
        assert!(matches!(alone[..], [PutOutcome::Stored]), "one alone is not withheld");
        let removed = bench.engine.remove(&bench.keys(10), WITHIN).expect("answered");
        assert!(removed.iter().any(|o| matches!(o, RemoveOutcome::Failed(_))));
        let raised = bench.engine.promote(&bench.keys(10), WITHIN).expect("answered");
        assert!(raised.iter().any(|o| matches!(o, PromoteOutcome::Failed(_))));
    }
}

#[test]
fn a_lost_holder_fails_reads_and_writes_of_its_keys_and_then_they_are_gone() {
    let bench = Bench::new(FaultPlan::new(6).with_holder_loss(1000, 3));
    bench.fill(10);
    let first = bench.get(10).expect("answered");
    let lost: Vec<usize> = (0..10).filter(|i| matches!(first[*i], GetOutcome::Failed(_))).collect();
    assert!((1..10).contains(&lost.len()), "{lost:?}");
    let probed = bench.engine.probe(&bench.keys(10), WITHIN).expect("answered");
    assert!(
        probed.iter().all(|p| matches!(p, Presence::Present { .. })),
        "they still seem present"
    );
    let third = bench.put(10).expect("answered");
    let again: Vec<usize> = (0..10).filter(|i| matches!(third[*i], PutOutcome::Failed(_))).collect();
    assert_eq!(lost, again);

    // The next call first removes the lost objects. The plan strikes again and chooses others.
    let probed = bench.engine.probe(&bench.keys(10), WITHIN).expect("answered");
    let absent: Vec<usize> = (0..10).filter(|i| probed[*i] == Presence::Absent).collect();
    assert_eq!(lost, absent);
    assert_eq!(bench.effects()[0], Effect::HolderLost { calls: 3 });
    assert!(bench.effects().contains(&Effect::ObjectsGone(lost.len())));
    bench.engine.pause();
    let outcomes = bench.get(10).expect("answered");
    assert!((0..10).all(|i| matches!(outcomes[i], GetOutcome::Miss) == lost.contains(&i)));
    assert!((0..10).all(|i| matches!(outcomes[i], GetOutcome::Loaded) != lost.contains(&i)));
}

#[test]
fn a_lost_master_fails_every_call_for_a_while() {
    let plan = (0..)
        .map(|seed| FaultPlan::new(seed).with_master_loss(200, 4))
        .find(|plan| {
            // The first call is not struck, so that the start of the outage can be seen.
            let place = |call| super::super::plan::Place {
                call,
                operation: Operation::Usage,
                item: None,
            };
            let strikes: Vec<bool> = (0..8)
                .map(|call| plan.strikes(FaultKind::MasterLoss, place(call)))
                .collect();
            strikes == [false, true, false, false, false, false, false, false]
        });
    let bench = Bench::new(plan.expect("some seed does"));
    let up: Vec<bool> = (0..8).map(|_| bench.engine.usage(WITHIN).is_ok()).collect();
    assert_eq!(up, [true, false, false, false, false, true, true, true]);
    assert_eq!(bench.effects()[0], Effect::MasterLost { calls: 4 });
    assert_eq!(bench.effects()[1..], [Effect::MasterDown; 4]);

    let dead = Bench::new(FaultPlan::new(0).with_master_loss(1000, 100));
    assert!(matches!(
        dead.put(2).expect("outcomes")[..],
        [PutOutcome::Failed(_), PutOutcome::Failed(_)]
    ));
    assert!(matches!(dead.get(1).expect("outcomes")[..], [GetOutcome::Failed(_)]));
    let removed = dead.engine.remove(&dead.keys(1), WITHIN).expect("outcomes");
    assert!(matches!(removed[..], [RemoveOutcome::Failed(_)]));
    let raised = dead.engine.promote(&dead.keys(1), WITHIN).expect("outcomes");
    assert!(matches!(raised[..], [PromoteOutcome::Failed(_)]));
    unavailable(
        &dead.engine.probe(&dead.keys(1), WITHIN).expect_err("dead"),
        Retry::Safe,
    );
    assert!(dead.cluster.objects().is_empty());
}

#[test]
fn all_kinds_together_strike_and_leave_a_usable_engine() {
    let bench = Bench::new(FaultPlan::new(7).with_all(100));
    for _ in 0..500 {
        let _struck_or_not = (bench.put(4).is_ok(), bench.get(4).is_ok());
    }
    let kinds: std::collections::HashSet<_> = bench.effects().iter().map(std::mem::discriminant).collect();
    assert!(kinds.len() >= 10, "{} kinds of effects", kinds.len());
    bench.engine.pause();
    assert!(
        bench
            .put(4)
            .expect("answered")
            .iter()
            .all(|o| matches!(o, PutOutcome::Stored))
    );
    assert!(
        bench
            .get(4)
            .expect("answered")
            .iter()
            .all(|o| matches!(o, GetOutcome::Loaded))
    );
}
