//! Explores the model of the custody code and says what it found.
//!
//! `cargo run --release -p tensorhold-custody --example custody_model [-- NAME …] [--most STATES]`
//!
//! Without names, every scenario is explored to its end, and the one that has none (`everything`) as far as `--most`
//! generated states go. Ends with 1 if something is broken, or was never reached.

#![allow(clippy::print_stdout, reason = "a program for people")]

#[path = "../tests/model/mod.rs"]
mod model;

use model::runs;
use tensorhold_core::{Clock, SystemClock};

fn main() {
    let mut most = 10_000_000;
    let mut names = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--most" => most = arguments.next().and_then(|number| number.parse().ok()).unwrap_or(most),
            name => names.push(name.to_owned()),
        }
    }
    let to_the_end = [
        runs::redelivery(),
        runs::supersession(),
        runs::groups(),
        runs::epochs(),
        runs::pressure(),
        runs::two_by_two(),
    ];
    let scenarios = to_the_end.map(|scenario| (scenario, None));
    let mut good = true;
    for (scenario, most) in scenarios.into_iter().chain([(runs::everything(), Some(most))]) {
        let name = scenario.name;
        if !names.is_empty() && !names.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        let clock = SystemClock::default();
        let started = clock.now();
        let outcome = runs::explore(scenario, most, false, 2);
        println!(
            "{name}: {} unique states ({} generated), depth {}, {}, {:?}",
            outcome.unique,
            outcome.generated,
            outcome.depth,
            if outcome.complete { "complete" } else { "cut off" },
            clock.now().since(started),
        );
        for verdict in &outcome.verdicts {
            let steps = verdict.path.as_ref().map_or(0, Vec::len);
            match (verdict.good, steps) {
                (true, 0) => println!("  holds    {}", verdict.property),
                (true, steps) => println!("  reached  {}, in {steps} steps", verdict.property),
                (false, 0) => println!("  MISSED   {}", verdict.property),
                (false, steps) => println!("  BROKEN   {}, in {steps} steps:", verdict.property),
            }
            for action in verdict.path.iter().flatten().filter(|_| !verdict.good) {
                println!("             {action:?}");
            }
        }
        good &= outcome.bad().is_empty();
    }
    println!(
        "{}",
        if good {
            "everything holds"
        } else {
            "something is broken"
        }
    );
    std::process::exit(i32::from(!good));
}
