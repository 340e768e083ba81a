//! What strikes follows from the seed, and from nothing else.

use tensorhold_core::{Rng, SeededRng};

use super::*;

/// A few hundred mixed calls, the same for every plan. Returns what the caller saw.
fn drive(bench: &Bench, calls: u32) -> Vec<String> {
    let rng = SeededRng::new(99);
    let mut seen = Vec::new();
    for _ in 0..calls {
        let n = 1 + usize::try_from(rng.below(6)).expect("small");
        let keys = bench.keys(n);
        seen.push(match rng.below(7) {
            0 => format!("{:?}", bench.put(n)),
            1 | 2 => format!("{:?} {:?}", bench.get(n), bench.region.whole().to_vec()),
            3 => format!("{:?}", bench.engine.remove(&keys[..1], WITHIN)),
            4 => format!("{:?}", bench.engine.probe(&keys, WITHIN)),
            5 => format!("{:?}", bench.engine.promote(&keys, WITHIN)),
            _ => format!("{:?}", bench.engine.usage(WITHIN)),
        });
    }
    seen
}

#[test]
fn the_same_seed_gives_the_same_faults_and_another_one_does_not() {
    let runs = [5, 5, 6].map(|seed| {
        let bench = Bench::new(FaultPlan::new(seed).with_all(60));
        let seen = drive(&bench, 400);
        (bench.engine.faults(), seen)
    });
    assert!(runs[0].0.len() > 100, "{} faults", runs[0].0.len());
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0].0, runs[2].0);
}

#[test]
fn a_fault_follows_from_its_place_and_not_from_what_happened_before() {
    let plan = FaultPlan::new(3).with_lost_request(300);
    let (all, gets) = (Bench::new(plan.clone()), Bench::new(plan));
    for i in 0..200 {
        // Every other call is of another kind in one run; the others are struck as before.
        let _struck_or_not = all.get(1).is_ok();
        let _struck_or_not = if i % 2 == 0 {
            gets.get(1).is_ok()
        } else {
            gets.put(1).is_ok()
        };
    }
    let even = |bench: &Bench| -> Vec<InjectedFault> {
        let faults = bench.engine.faults();
        faults.into_iter().filter(|fault| fault.call % 2 == 0).collect()
    };
    assert!(even(&all).len() > 20);
    assert_eq!(even(&all), even(&gets));
}

#[test]
fn rates_are_kept_about() {
    let bench = Bench::new(FaultPlan::new(1).with_lost_request(100));
    let lost = (0..2000).filter(|_| bench.engine.usage(WITHIN).is_err()).count();
    assert!((150..250).contains(&lost), "{lost} of 2000 at 100 per mille");
}

#[test]
fn without_rates_it_is_transparent() {
    let faulty = Bench::new(FaultPlan::new(5));
    let seen = drive(&faulty, 300);
    assert_eq!(faulty.engine.faults(), []);
    let plain = Bench::new(FaultPlan::new(5));
    plain.engine.pause();
    assert_eq!(seen, drive(&plain, 300));
}

#[test]
fn a_pause_passes_calls_on_and_stops_the_count() {
    let plan = FaultPlan::new(8).with_lost_request(500);
    let (straight, paused) = (Bench::new(plan.clone()), Bench::new(plan));
    for i in 0..40 {
        let _struck_or_not = straight.engine.usage(WITHIN).is_ok();
        let _struck_or_not = paused.engine.usage(WITHIN).is_ok();
        if i % 3 == 0 {
            paused.engine.pause();
            assert!((0..10).all(|_| paused.engine.usage(WITHIN).is_ok()));
            paused.engine.resume();
        }
    }
    assert_eq!(straight.engine.faults(), paused.engine.faults());
}

#[test]
fn calls_that_no_engine_acts_on_are_neither_struck_nor_counted() {
    let bench = Bench::new(FaultPlan::new(1).with_all(1000));
    assert!(
        bench
            .engine
            .put(&[], &PutOptions::default(), WITHIN)
            .expect("empty")
            .is_empty()
    );
    assert!(bench.engine.get(&[], WITHIN).expect("empty").is_empty());
    assert!(bench.engine.remove(&[], WITHIN).expect("empty").is_empty());
    assert!(bench.engine.probe(&[], WITHIN).expect("empty").is_empty());
    assert!(bench.engine.promote(&[], WITHIN).expect("empty").is_empty());
    let twice = [bench.batch(1), bench.batch(1)].concat();
    let refused = bench.engine.put(&twice, &PutOptions::default(), WITHIN);
    assert_eq!(refused.expect_err("a key stands twice").kind(), ErrorKind::Invalid);
    let many = vec![key(0); 1025];
    assert_eq!(
        bench.engine.probe(&many, WITHIN).expect_err("too many").kind(),
        ErrorKind::Invalid
    );
    let foreign = bench.cluster.connect().allocate(8, WITHIN).expect("memory");
    let mixed = [bench.batch(1), vec![Transfer::new(key(1), foreign.whole())]].concat();
    let refused = bench.engine.put(&mixed, &PutOptions::default(), WITHIN);
    assert_eq!(refused.expect_err("foreign memory").kind(), ErrorKind::Invalid);
    let late = bench.engine.get(&bench.batch(1), Duration::ZERO);
    assert_eq!(late.expect_err("no time").kind(), ErrorKind::Unavailable);
    assert_eq!(bench.engine.faults(), []);
}

#[test]
fn it_wraps_an_engine_behind_the_trait() {
    let bench = Bench::new(FaultPlan::new(1));
    let inner: Arc<dyn Engine> = bench.plain.clone();
    let engine: Arc<dyn Engine> = Arc::new(FaultEngine::new(
        inner,
        FaultPlan::new(1).with_lost_request(1000),
        bench.clock.clone(),
    ));
    assert!(engine.usage(WITHIN).is_err());
    assert_eq!(engine.capabilities(), bench.plain.capabilities());
    assert_eq!(engine.registrations(), bench.plain.registrations());
}

#[test]
fn a_plan_shows_its_seed_and_what_strikes() {
    let plan = FaultPlan::new(42).with_torn_bytes(5);
    assert_eq!((plan.seed(), plan.rate(FaultKind::TornBytes)), (42, 5));
    let shown = format!("{plan:?}");
    assert!(shown.contains("seed: 42") && shown.contains("TornBytes: 5"), "{shown}");
    assert!(!shown.contains("ShortRead"), "{shown}");
}
