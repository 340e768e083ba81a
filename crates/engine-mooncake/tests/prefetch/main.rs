//! Prefetch on exist, on a real master with an SSD tier and two holders.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests tell what they see"
)]

#[path = "../truths/bare.rs"]
#[allow(dead_code, unreachable_pub, reason = "this file uses a part of it")]
mod bare;
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod ssd_cluster;

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, ObjectKey, SystemClock, poll_until};
use tensorhold_engine::testing::pattern;
use tensorhold_engine::{Engine, EngineExt, GetOutcome, Pin, Presence, PutOptions, PutOutcome, Span};
use tensorhold_prefetch::{Outcome, PrefetchConfig, PrefetchEngine, Priority, Route};

use bare::{Bare, Keep, MIB, OBJECT_HAS_LEASE};
use common::{WITHIN, key};
use ssd_cluster::SsdCluster;

const THREE_SECONDS: Duration = Duration::from_secs(3);

fn count(outcomes: &[Option<Outcome>], name: &str) -> usize {
    let named = |outcome: &&Option<Outcome>| outcome.as_ref().is_some_and(|outcome| outcome.name() == name);
    outcomes.iter().filter(named).count()
}

fn prefetcher(engine: &Arc<dyn Engine>, config: PrefetchConfig) -> PrefetchEngine {
    PrefetchEngine::new(Arc::clone(engine), config, Arc::new(SystemClock::new())).expect("lawful settings")
}

/// What lies on SSD only is in memory soon after the question, and is read from there.
#[test]
fn forty_objects_on_ssd_are_in_memory_when_they_are_read() {
    let ssd = SsdCluster::start(400);
    let cold = ssd.cold(40);
    let engine = prefetcher(&ssd.engine, PrefetchConfig::default());
    let clock = SystemClock::new();
    let begin = clock.now();
    let (found, prefetch) = engine
        .exists_and_prefetch(&cold, Priority::Guess, WITHIN)
        .expect("answers");
    let answered = clock.now().since(begin);
    assert!(
        found
            .iter()
            .all(|one| matches!(one, Presence::Present { dram: 0, ssd: 1, .. }))
    );
    let outcomes = prefetch.wait(THREE_SECONDS);
    let took = clock.now().since(begin);
    let resident = count(&outcomes, "resident");
    assert!(
        resident >= 38,
        "{resident} of 40 in {took:?}: {:?}",
        prefetch.progress()
    );

    let read_before = ssd.metric("file_cache_hit_nums_");
    let into = ssd.engine.allocate(MIB, WITHIN).expect("memory");
    let mut times = Vec::new();
    for (cold, outcome) in cold.iter().zip(&outcomes) {
        let begin = clock.now();
        let got = engine.get_one(cold, &into.whole(), WITHIN).expect("an outcome");
        times.push(clock.now().since(begin));
        assert!(matches!(got, GetOutcome::Loaded), "{cold}: {got:?} after {outcome:?}");
        assert_eq!(into.whole().to_vec(), pattern(MIB, ssd.seed(cold)), "{cold}");
    }
    let read = ssd.metric("file_cache_hit_nums_") - read_before;
    let sources = engine.stats().sources;
    assert_eq!(sources.local, resident as u64);
    assert!(read <= (40 - resident) as f64, "{read} of the gets went to SSD");
    times.sort();
    println!(
        "answered in {answered:?}, {resident} of 40 in {took:?}, get p50 {:?}",
        times[20]
    );
}

/// Ten thousand questions leave no trace: no lease, no promotion, no change of what is evicted. Mooncake's own question
/// is asked in the same run, to see the difference.
#[test]
fn ten_thousand_probes_leave_no_trace() {
    let ssd = SsdCluster::start(400);
    let engine = prefetcher(&ssd.engine, PrefetchConfig::default());
    let bare = Bare::connect(&ssd.cluster);
    let promoted = ssd.metric("master_promotion_admitted_total");
    let hot = ssd.in_dram(2);
    let cold = ssd.cold(1).remove(0);
    let mut asked: Vec<ObjectKey> = hot.clone();
    asked.push(cold);
    for _ in 0..10_000 {
        engine.exists(&asked, WITHIN).expect("answers");
    }
    assert_eq!(
        ssd.metric("master_promotion_admitted_total"),
        promoted,
        "a probe promotes nothing"
    );
    assert_eq!(bare.remove(hot[0].as_str(), false), 0, "a probe grants no lease");
    assert_eq!(bare.is_exist(hot[1].as_str()), 1);
    assert_eq!(
        bare.remove(hot[1].as_str(), false),
        OBJECT_HAS_LEASE,
        "Mooncake's own question does"
    );

    // Evictions go on while every object is asked for, and do not with Mooncake's own question.
    let clock = SystemClock::new();
    let from = bare.filled(MIB, 7);
    let refused = |ask: &dyn Fn(&[ObjectKey]), name: &str| {
        // The leases of the turn before have passed.
        clock.sleep(Duration::from_millis(1500));
        let before = ssd.metric("master_put_start_alloc_failures_total");
        let mut all = ssd.in_dram(usize::MAX);
        for n in 0..150 {
            ask(&all);
            let other = key(format!("{name}-{n}"));
            let put = || (bare.put(other.as_str(), &from.whole(), Keep::Evictable) == 0).then_some(());
            poll_until(&clock, WITHIN, Duration::from_millis(5), put).expect("room in the end");
            all.push(other);
        }
        ssd.metric("master_put_start_alloc_failures_total") - before
    };
    let (mut without, mut ours, mut theirs) = (0.0, 0.0, 0.0);
    for turn in 0..2 {
        without += refused(&|_| {}, &format!("without-{turn}"));
        ours += refused(&|keys| drop(engine.exists(keys, WITHIN)), &format!("ours-{turn}"));
        let is_exist = |keys: &[ObjectKey]| {
            let names: Vec<&str> = keys.iter().map(ObjectKey::as_str).collect();
            drop(bare.batch_is_exist(&names));
        };
        theirs += refused(&is_exist, &format!("theirs-{turn}"));
    }
    println!("tries refused for 300 puts: {without} without probes, {ours} with ours, {theirs} with Mooncake's own");
    assert!(theirs > ours, "Mooncake's own question used to block eviction");
    assert_eq!(
        ssd.metric("master_promotion_admitted_total"),
        promoted,
        "a probe promotes nothing"
    );
}

/// DRAM at 97 %: nothing is promoted, nothing live is evicted, other puts are refused no more often than without.
#[test]
fn a_full_cluster_is_left_alone() {
    let ssd = SsdCluster::start(400);
    let cold = ssd.cold(40);
    let bare = Bare::connect(&ssd.cluster);
    let from = bare.filled(MIB, 3);
    let full = |share: f64| {
        let usage = ssd.engine.usage(WITHIN).expect("figures");
        usage.dram_used as f64 >= share * usage.dram_capacity as f64
    };
    let clock = SystemClock::new();
    let mut pinned = 0;
    while !full(0.97) {
        let put = || (bare.put(&format!("pinned-{pinned}"), &from.whole(), Keep::Pinned) == 0).then_some(());
        poll_until(&clock, WITHIN, Duration::from_millis(5), put).expect("room");
        pinned += 1;
    }
    for route in [Route::Promote, Route::Buffer] {
        // How fast the master evicts on a busy machine decides about some puts of each run. What prefetches cost would show
        // every time.
        let mut seen = Vec::new();
        let is_left_alone = (0..3).any(|round| {
            let (without, with) = refused_puts(&ssd, &bare, &from.whole(), &cold, route, round);
            println!("{route:?}: {without} puts of 150 refused without, {with} with prefetch");
            seen.push((without, with));
            with <= without + 30
        });
        assert!(
            is_left_alone,
            "{route:?}: refused without and with prefetches: {seen:?}"
        );
    }
    for n in 0..pinned {
        let there = ssd
            .engine
            .probe_one(&key(format!("pinned-{n}")), WITHIN)
            .expect("an answer");
        assert!(
            matches!(there, Presence::Present { dram: 1, .. }),
            "pinned-{n} is {there:?}"
        );
    }
}

/// How many of 150 unrelated puts are refused, without and with prefetches of `cold` beside them.
fn refused_puts(
    ssd: &SsdCluster,
    bare: &Bare,
    from: &Span,
    cold: &[ObjectKey],
    route: Route,
    round: usize,
) -> (usize, usize) {
    let clock = SystemClock::new();
    let mut refused = Vec::new();
    // The first run finds a cluster that is less full than those after it, and counts for nothing.
    let with_prefetch = [false, false, true, true, false, false, true];
    for (run, with) in with_prefetch.into_iter().enumerate() {
        let engine = prefetcher(
            &ssd.engine,
            PrefetchConfig {
                route,
                // How soon is another test's question.
                begin_within: WITHIN,
                within: WITHIN,
                ..PrefetchConfig::default()
            },
        );
        let evicted = ssd.metric("master_evicted_key_count");
        let prefetch = with.then(|| engine.prefetch(cold, Priority::Guess));
        let refused_now = (0..50)
            .filter(|n| {
                // At a pace of its own: in a hurry, the count says how fast the machine is.
                clock.sleep(Duration::from_millis(20));
                bare.put(&format!("other-{route:?}-{round}-{run}-{n}"), from, Keep::Evictable) != 0
            })
            .count();
        refused.push(refused_now);
        let Some(prefetch) = prefetch else { continue };
        let outcomes = prefetch.wait(WITHIN);
        assert_eq!(outcomes.iter().flatten().count(), 40, "every key has an outcome");
        let wanted = if route == Route::Promote { "refused" } else { "resident" };
        assert_eq!(count(&outcomes, wanted), 40, "{route:?}: {:?}", prefetch.progress());
        let counts = engine.stats().outcomes;
        assert_eq!((counts.asked, counts.ended()), (40, 40));
        let evicted = ssd.metric("master_evicted_key_count") - evicted;
        println!("{route:?}, run {run}: {evicted} evicted in all");
    }
    let sum = |wanted: bool| -> usize {
        let runs = refused.iter().zip(with_prefetch).skip(1);
        runs.filter(|(_, with)| *with == wanted)
            .map(|(refused, _)| refused)
            .sum()
    };
    (sum(false), sum(true))
}

/// A holder dies while its objects are read ahead: every waiter leaves, every object ends, and later it works again.
#[test]
fn a_holder_that_dies_holds_up_nobody() {
    let ssd = SsdCluster::start(200);
    let cold = ssd.cold(40);
    let bound = Duration::from_secs(2);
    let engine = prefetcher(
        &ssd.engine,
        PrefetchConfig {
            batch_objects: 2,
            wait_for_prefetch: bound,
            ..PrefetchConfig::default()
        },
    );
    let clock = SystemClock::new();
    let prefetch = engine.prefetch(&cold, Priority::Guess);
    poll_until(&clock, WITHIN, Duration::from_millis(1), || {
        (engine.stats().outcomes.begun > 0).then_some(())
    })
    .expect("begun");
    ssd.cluster.holder(0).kill().expect("killed");
    std::thread::scope(|scope| {
        for cold in &cold[..8] {
            let (engine, ssd, clock) = (&engine, &ssd, &clock);
            scope.spawn(move || {
                let into = ssd.engine.allocate(MIB, WITHIN).expect("memory");
                let begin = clock.now();
                // Whatever the outcome: it comes within its time.
                drop(engine.get_one(cold, &into.whole(), 2 * bound));
                let took = clock.now().since(begin);
                assert!(took < 3 * bound, "{cold} took {took:?}");
            });
        }
    });
    let outcomes = prefetch.wait(WITHIN);
    assert_eq!(
        outcomes.iter().flatten().count(),
        40,
        "every key ends: {:?}",
        prefetch.progress()
    );
    println!("{:?}", prefetch.progress());
    drop(prefetch);
    // What the other holder has is read ahead again.
    let again = poll_until(&clock, common::RECOVERY, Duration::from_millis(500), || {
        let prefetch = engine.prefetch(&ssd.cold_now()?, Priority::Guess);
        let outcomes = prefetch.wait(WITHIN);
        (count(&outcomes, "resident") > 0).then_some(())
    });
    assert!(again.is_some(), "a later prefetch works");
}

/// Sixty-four gets that wait for sixty-four promotions ask the master a few times, not each for itself.
#[test]
fn waiting_gets_share_their_questions() {
    let ssd = SsdCluster::start(400);
    let cold = ssd.cold(64);
    // Room for what comes up.
    let hot: Vec<String> = ssd.in_dram(usize::MAX).iter().map(ToString::to_string).collect();
    Bare::connect(&ssd.cluster).batch_remove(&hot, true);
    let engine = prefetcher(
        &ssd.engine,
        PrefetchConfig {
            route: Route::Promote,
            wait_for_prefetch: Duration::from_millis(500),
            batch_objects: 64,
            ..PrefetchConfig::default()
        },
    );
    let prefetch = engine.prefetch(&cold, Priority::Wanted);
    let clock = SystemClock::new();
    poll_until(&clock, WITHIN, Duration::from_millis(1), || {
        (engine.stats().outcomes.begun == 64).then_some(())
    })
    .expect("begun");
    let (before, begin) = (ssd.probes(), clock.now());
    std::thread::scope(|scope| {
        for cold in &cold {
            let (engine, ssd) = (&engine, &ssd);
            scope.spawn(move || {
                let into = ssd.engine.allocate(MIB, WITHIN).expect("memory");
                let got = engine.get_one(cold, &into.whole(), WITHIN).expect("an outcome");
                assert!(matches!(got, GetOutcome::Loaded), "{got:?}");
            });
        }
    });
    let took = clock.now().since(begin);
    let queries = ssd.probes() - before;
    let allowed = 4.0 * took.as_secs_f64() / 0.010;
    println!(
        "{queries} queries in {took:?}; allowed are {allowed:.0}; {:?}",
        prefetch.progress()
    );
    assert!((queries as f64) <= allowed);
}

/// Objects that were put by the process itself are found at once, however answers are remembered.
#[test]
fn a_put_is_seen_by_the_next_question() {
    let ssd = SsdCluster::start(0);
    let engine = prefetcher(
        &ssd.engine,
        PrefetchConfig {
            cache_for: Duration::from_secs(60),
            ..PrefetchConfig::default()
        },
    );
    let fresh = [key("fresh")];
    assert_eq!(engine.exists(&fresh, WITHIN).expect("answers"), [Presence::Absent]);
    let from = ssd.engine.allocate(MIB, WITHIN).expect("memory");
    let options = PutOptions {
        pin: Pin::Evictable,
        ..PutOptions::default()
    };
    let put = engine
        .put_one(&fresh[0], &from.whole(), &options, WITHIN)
        .expect("an outcome");
    assert!(matches!(put, PutOutcome::Stored));
    let there = engine.exists(&fresh, WITHIN).expect("answers");
    assert!(matches!(there[..], [Presence::Present { dram: 1, .. }]), "{there:?}");
    let before = ssd.probes();
    engine.exists(&fresh, WITHIN).expect("answers");
    assert_eq!(ssd.probes(), before, "remembered");
    engine.remove(&fresh, WITHIN).expect("an outcome");
    assert_eq!(engine.exists(&fresh, WITHIN).expect("answers"), [Presence::Absent]);
}
