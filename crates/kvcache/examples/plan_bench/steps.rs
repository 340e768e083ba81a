//! Steps of a planner with many requests in flight.

use anyhow::{Result, ensure};
use tensorhold_core::{SeededRng, SystemClock};
use tensorhold_kvcache::plan::{Completion, PageKeys, Plan, PlanEvent, Planner, RequestId, State, Ticket, Work};

use crate::{PAGE, median, namespace, planner, tokens, us};

/// Ten thousand requests in flight: a thousand that run, a thousand that wait for L3, the rest in the queue for device
/// pages. In each round the thousand running ones write a token each, and twenty requests pass through each stage.
pub(crate) fn steps(clock: &SystemClock) -> Result<(f64, f64, f64)> {
    const RUNNING: u32 = 1_000;
    const MOVES: usize = 20;
    let rng = SeededRng::new(9);
    let pages = 64;
    let mut planner = planner(400_000, RUNNING * (pages - 32 + 2))?;
    let mut shared = namespace().keys();
    shared.extend(&tokens(&rng, 32));
    let prompt = || {
        let mut keys = shared.clone();
        keys.extend(&tokens(&rng, pages - 32));
        keys
    };
    let (mut queries, mut others, mut running) = (Vec::new(), Vec::new(), Vec::<(Ticket, u32)>::new());
    let mut next = 0;
    let mut in_flight = 0;
    let mut rounds = Vec::new();
    for round in 0..1_500u64 {
        let warm = round >= 1_000;
        // Up to ten thousand, and then as many as have left.
        let arrivals = (10_000 - in_flight).min(60);
        let fresh: Vec<PageKeys> = (0..arrivals).map(|_| prompt()).collect();
        let (mut events, mut step) = (0.0, 0.0);
        let mut plan = Plan::default();
        let mut failed = None;
        events += us(clock, || {
            let mut tell = |planner: &mut Planner, event| {
                if let Err(error) = planner.on_event(event) {
                    failed = Some(error);
                }
            };
            for keys in fresh {
                next += 1;
                if planner.submit(RequestId(next), keys).is_err() {
                    return;
                }
            }
            for (ticket, written) in &mut running {
                *written += 1;
                // A request that gets no room is retracted, and waits in the queue again.
                if *written % PAGE == 1 && planner.on_event(PlanEvent::Reserve(*ticket, PAGE)).is_err() {
                    tell(&mut planner, PlanEvent::Retract(*ticket));
                } else {
                    tell(&mut planner, PlanEvent::Appended(*ticket, vec![1]));
                }
            }
            let finished = if running.len() > 900 { MOVES } else { 0 };
            for (ticket, _) in running.drain(..finished) {
                if matches!(planner.state(ticket), Some(State::Retracting | State::Retracted)) {
                    continue;
                }
                tell(&mut planner, PlanEvent::Finish(ticket));
            }
            // L3 answers for the oldest; a thousand are left waiting.
            let answered = if queries.len() > 1_000 {
                queries.len() - 1_000
            } else {
                0
            };
            for operation in queries.drain(..answered) {
                let hits = if round % 2 == 0 { 20 } else { 0 };
                let done = Completion {
                    operation,
                    completed: hits,
                    failure: None,
                };
                tell(&mut planner, PlanEvent::Completed(vec![done]));
            }
            for (operation, completed) in others.drain(..) {
                let done = Completion {
                    operation,
                    completed,
                    failure: None,
                };
                tell(&mut planner, PlanEvent::Completed(vec![done]));
            }
        });
        step += us(clock, || plan = planner.step(round));
        in_flight = in_flight + arrivals - plan.ended.len();
        if let Some(error) = failed {
            return Err(error.into());
        }
        for operation in &plan.operations {
            match &operation.work {
                Work::Query(_) => queries.push(operation.id),
                work => others.push((operation.id, work.pages())),
            }
        }
        for ticket in &plan.retracted {
            planner.on_event(PlanEvent::Resume(*ticket))?;
        }
        for grant in plan.grants.iter().filter(|grant| grant.first == 0) {
            planner.on_event(PlanEvent::PrefillDone(grant.ticket))?;
            running.push((grant.ticket, 0));
        }
        running.retain(|(ticket, _)| matches!(planner.state(*ticket), Some(State::PrefillDone | State::Decoding)));
        if warm {
            rounds.push((events / 1e3, step / 1e3));
        }
    }
    ensure!(planner.violations().is_empty(), "{:?}", planner.violations());
    let counters = planner.counters();
    println!(
        "{next} requests submitted, {in_flight} in flight and {} running at the end, {counters:?}",
        running.len()
    );
    let total = median(rounds.iter().map(|(events, step)| events + step).collect());
    let slowest = rounds.iter().map(|(events, step)| events + step).fold(0.0, f64::max);
    Ok((total, median(rounds.iter().map(|(_, step)| *step).collect()), slowest))
}
