//! What one observation costs: the best of several rounds, in nanoseconds. Run it with `--release`.

use std::hint::black_box;
use std::io::Write;

use tensorhold_core::{Clock, SystemClock};
use tensorhold_metrics::{EngineCall, Outcome, Registry};

/// Many short rounds: on a busy machine some of them are not interrupted.
const ROUNDS: usize = 1000;
const TIMES: u32 = 5_000;

fn best(clock: &dyn Clock, act: impl Fn(u32)) -> f64 {
    let round = |_| {
        let begun = clock.now();
        (0..TIMES).for_each(|at| act(black_box(at)));
        clock.now().since(begun).as_secs_f64() * 1e9 / f64::from(TIMES)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn main() -> std::io::Result<()> {
    let clock = SystemClock::new();
    let registry: &'static Registry = Box::leak(Box::new(Registry::new(true)));
    let Some(store) = registry.store("cost") else {
        return Ok(());
    };
    let mut out = std::io::stdout();
    let reads = best(&clock, |_| {
        let begun = clock.now();
        black_box(clock.now().since(begun));
    });
    writeln!(out, "two reads of the clock: {reads:.0} ns")?;
    let operation = best(&clock, |_| {
        let begun = clock.now();
        store
            .operations
            .ended_by_name(black_box("ack"), Outcome::OK, clock.now().since(begun));
    });
    writeln!(out, "an operation, with its two reads of the clock: {operation:.0} ns")?;
    let call = best(&clock, |_| {
        let begun = clock.now();
        store
            .engine
            .ended(EngineCall::Get, Outcome::OK, clock.now().since(begun));
        store.engine.objects(EngineCall::Get, ["loaded"; 1].into_iter());
        store.engine.bytes_in.add(4096);
    });
    writeln!(out, "an engine call of one object, the same: {call:.0} ns")?;
    Ok(())
}
