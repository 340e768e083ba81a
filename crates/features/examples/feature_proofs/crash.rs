//! Proof 3: producers and consumers are killed at every point of what they do, while others run on.
//!
//! Two producers and two consumers work all the time. Beside them, one after the other, come a doomed producer and a
//! doomed consumer: they join, work for a while, and die of SIGKILL at the point in question (module `doom`). When all
//! have died, the others stop producing, use up what is there, and clear up; then everything is counted (module
//! `aftermath`).
//!
//! A doomed producer puts one sample at a time, so the sample in its hands is known. If it died before the commit, that
//! sample must never be seen; after the commit, it must be delivered like any other.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::{Result, ensure};
use tensorhold_core::{Clock, Rng, SystemClock, SystemRng};
use tensorhold_testkit::Cluster;

use crate::aftermath::{self, Dead};
use crate::crew::Member;
use crate::doom::{Doom, Point};
use crate::journal::Event;
use crate::report::Report;
use crate::worker::{Produce, Role};
use crate::world::{MIB, Settings, WITHIN, runtime};

const TICK: Duration = Duration::from_millis(200);
const SESSION: u32 = 10;
const LEASE: u32 = 30;
/// How long the engine keeps a put whose writer died, and the space of it.
const DISCARD: &str = "--put_start_discard_timeout_sec=5";
const RELEASE: &str = "--put_start_release_timeout_sec=8";
/// A doomed process dies within this.
const DEAD_WITHIN: Duration = Duration::from_secs(60);
pub(crate) const BUDGET: u64 = 256 << 20;
const SIGKILL: i32 = 9;

fn produce(lens: &[usize], at_once: usize, pause_millis: u64) -> Role {
    Role::Produce(Produce {
        count: None,
        lens: lens.to_vec(),
        at_once,
        pause_millis,
    })
}

const CONSUME: Role = Role::Consume {
    at_once: 2,
    use_millis: 5,
};

pub(crate) fn run(quick: bool, budget: bool) -> Result<Report> {
    let times = if quick { 2 } else { 10 };
    let clock = SystemClock::new();
    let cluster = Cluster::builder()
        .p2p_metadata(true)
        .segment_mib(512)
        .etcd_nodes(1)
        .master_flag(DISCARD)
        .master_flag(RELEASE)
        .start()?;
    let mut settings = Settings::new(cluster.endpoints())?.with_times(TICK, SESSION, LEASE);
    settings.store.sweep_every = Some(TICK * 2);
    settings.store.pool_bytes = 256 << 20;
    let runtime = runtime()?;
    if budget {
        let index = runtime.block_on(settings.index())?;
        runtime.block_on(index.set_budget(BUDGET, WITHIN))?;
    }
    let dir = cluster.dir();
    let mut producers = Vec::new();
    let mut consumers = Vec::new();
    for n in 0..2 {
        let role = produce(&[6 * MIB, 2 * MIB], 2, 60);
        producers.push(Member::start(dir, &settings, &format!("producer-{n}"), role, None)?);
        consumers.push(Member::start(dir, &settings, &format!("consumer-{n}"), CONSUME, None)?);
    }
    for member in producers.iter_mut().chain(&mut consumers) {
        member.wait_ready()?;
    }
    let begun = clock.now();
    let mut dead: Vec<Dead> = Vec::new();
    for turn in 0..times {
        for (of_producer, of_consumer) in Point::OF_PRODUCERS.into_iter().zip(Point::OF_CONSUMERS) {
            let mut doomed = Vec::new();
            for point in [of_producer, of_consumer] {
                let role = if point == of_producer {
                    produce(&[24 * MIB, 8 * MIB], 1, 10)
                } else {
                    CONSUME
                };
                let doom = Doom {
                    point,
                    spared: 1 + SystemRng.below(3),
                };
                let name = format!("doomed-{point:?}-{turn}");
                doomed.push((point, Member::start(dir, &settings, &name, role, Some(doom))?));
            }
            for (point, member) in doomed {
                dead.push(await_death(point, member)?);
            }
            for member in producers.iter().chain(&consumers) {
                member.must_run()?;
            }
            eprintln!(
                "crash: {} of {} killed after {:.0?}",
                dead.len(),
                times * 8,
                clock.now().since(begun)
            );
        }
    }
    for member in &mut producers {
        member.finish()?;
    }
    let mut report = Report::new("crash");
    report.note(format!(
        "sessions of {:?} and leases of {:?} instead of 10 s and 60 s; the engine gives up on unfinished puts after 5 s \
         and frees their space after 8 s ({DISCARD}, {RELEASE}), instead of 30 s and 600 s",
        TICK * SESSION,
        TICK * LEASE
    ));
    let mut living = producers;
    living.extend(consumers);
    let end = aftermath::clear_up(&settings, &runtime, &mut living, budget)?;
    aftermath::judge(&mut report, &living, &dead, &end);
    Ok(report)
}

fn await_death(point: Point, mut member: Member) -> Result<Dead> {
    let status = member.process.wait(DEAD_WITHIN)?;
    ensure!(
        status.signal() == Some(SIGKILL),
        "{} was to be killed, but ended with {status}:\n{}",
        member.name,
        member.process.output()
    );
    member.journal.refresh()?;
    let doomed = member.count(|event| matches!(event, Event::Doomed { .. }))?;
    ensure!(doomed == 1, "{} did not get to its point", member.name);
    Ok(Dead { point, member })
}
