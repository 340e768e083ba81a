//! Proof 3, the end: what is left when every process that was to die has died, and whether the books balance.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use anyhow::{Context, Result};
use tensorhold_core::{Clock, Deadline, ObjectKey, SystemClock};
use tensorhold_engine::{Presence, Usage};

use crate::crash::BUDGET;
use crate::crew::{Member, all};
use crate::doom::Point;
use crate::journal::{Event, Which, most_frequent};
use crate::report::{Report, rounded, table};
use crate::world::{Settings, WITHIN};

/// A process that was killed.
pub(crate) struct Dead {
    pub(crate) point: Point,
    pub(crate) member: Member,
}

/// What was left when there was nothing more to do, or no more time.
pub(crate) struct End {
    settings: Settings,
    usage: Usage,
    took: Duration,
    /// Records of samples and lists in the index.
    records: Vec<String>,
    /// The bytes in deposits; none without a budget.
    quota: Option<u64>,
}

/// How long the surviving processes may take to use up and clear up.
const CLEAR_WITHIN: Duration = Duration::from_secs(120);

/// The keys of samples, of grant lists of sessions, and of the ready lists.
fn is_record(key: &str) -> bool {
    ["p/", "s/", "g/", "f/", "q/", "h/"]
        .iter()
        .any(|start| key.starts_with(start))
}

/// Waits until everything is used up and freed, ends the surviving processes, and looks at what is left.
pub(crate) fn clear_up(
    settings: &Settings,
    runtime: &tokio::runtime::Runtime,
    living: &mut [Member],
    budget: bool,
) -> Result<End> {
    let clock = SystemClock::new();
    let begun = clock.now();
    let deadline = Deadline::after(&clock, CLEAR_WITHIN);
    let engine = settings.engine()?;
    let mut told = clock.now();
    loop {
        let usage = engine.usage(WITHIN)?;
        let entries = runtime.block_on(settings.entries())?;
        let records = entries
            .iter()
            .filter(|(key, _)| is_record(key) && !key.starts_with("h/"))
            .count();
        if (usage.objects == 0 && usage.dram_used == 0 && records == 0) || deadline.passed(&clock) {
            break;
        }
        if clock.now().since(told) >= Duration::from_secs(2) {
            told = clock.now();
            eprintln!(
                "crash: clearing up; {} objects and {records} records are left",
                usage.objects
            );
        }
        clock.sleep(Duration::from_millis(200));
    }
    let took = clock.now().since(begun);
    for member in living.iter_mut().filter(|member| member.process.is_running()) {
        member.finish()?;
    }
    // One member is left: it clears up after all sessions that have ended.
    let store = runtime.block_on(settings.join(std::sync::Arc::clone(&engine), None))?;
    let mut quiet = 0;
    let deadline = Deadline::after(&clock, CLEAR_WITHIN);
    while quiet < 5 && !deadline.passed(&clock) {
        let swept = runtime.block_on(store.sweep(WITHIN))?;
        let idle = swept.taken_back.sessions_cleared == 0 && swept.taken_back.looked_at == 0 && swept.freed == 0;
        quiet = if idle { quiet + 1 } else { 0 };
        clock.sleep(Duration::from_millis(300));
    }
    runtime.block_on(store.close(WITHIN))?;
    let entries = runtime.block_on(settings.entries())?;
    let bytes = |value: &[u8]| serde_json::from_slice::<u64>(value).context("a deposit cannot be read");
    let mut deposits = 0;
    for (_, value) in entries.iter().filter(|(key, _)| key.starts_with("b/a/")) {
        deposits += bytes(value)?;
    }
    Ok(End {
        settings: settings.clone(),
        usage: engine.usage(WITHIN)?,
        took,
        records: entries
            .into_iter()
            .map(|(key, _)| key)
            .filter(|key| is_record(key))
            .collect(),
        quota: budget.then_some(deposits),
    })
}

/// The sample in the hands of a producer when it died.
fn in_hands(dead: &Dead) -> Option<&str> {
    let last = dead.member.journal.events.iter().rev().find_map(|event| match event {
        Event::Putting { sample } => Some(sample.as_str()),
        _ => None,
    });
    last.filter(|_| Point::OF_PRODUCERS.contains(&dead.point))
}

/// What became of each sample: which consumer got it, whose acknowledgement was accepted, whose outcome is ambiguous.
#[derive(Default)]
struct Lives<'a> {
    committed: BTreeSet<&'a str>,
    got: HashSet<&'a str>,
    acks: HashMap<&'a str, usize>,
    unclear: HashSet<&'a str>,
    wrong: usize,
}

impl<'a> Lives<'a> {
    fn read(&mut self, events: &'a [Event]) {
        let mut asked: HashSet<&Which> = HashSet::new();
        for event in events {
            match event {
                Event::Committed { which, .. } => drop(self.committed.insert(&which.sample)),
                Event::Got { which, right, .. } => {
                    self.wrong += usize::from(!right);
                    self.got.insert(&which.sample);
                }
                Event::Acking { which } => drop(asked.insert(which)),
                Event::Acked { which } => {
                    asked.remove(which);
                    *self.acks.entry(&which.sample).or_default() += 1;
                }
                Event::NotAcked { which, unclear, .. } if !unclear => drop(asked.remove(which)),
                _ => {}
            }
        }
        self.unclear
            .extend(asked.into_iter().map(|which| which.sample.as_str()));
    }

    /// Used exactly once: an accepted acknowledgement, or one whose reply no process saw, because the consumer died
    /// asking.
    fn used_once(&self, sample: &str) -> bool {
        match self.acks.get(sample) {
            Some(1) => true,
            None => self.unclear.contains(sample) && self.got.contains(sample),
            Some(_) => false,
        }
    }
}

pub(crate) fn judge(report: &mut Report, living: &[Member], dead: &[Dead], end: &End) {
    let mut lives = Lives::default();
    for member in living.iter().chain(dead.iter().map(|dead| &dead.member)) {
        lives.read(&member.journal.events);
    }
    let (mut never, mut must) = (Vec::new(), Vec::new());
    for (dead, sample) in dead.iter().filter_map(|dead| Some((dead, in_hands(dead)?))) {
        if dead.point == Point::AfterCommit {
            &mut must
        } else {
            &mut never
        }
        .push(sample);
    }
    print_points(report, dead, &lives);
    let committed: Vec<&str> = lives.committed.iter().copied().chain(must.iter().copied()).collect();
    let lost: Vec<&&str> = committed
        .iter()
        .filter(|sample| !lives.got.contains(**sample))
        .collect();
    let unused = committed.iter().filter(|sample| !lives.used_once(sample)).count();
    report.claim(
        "every committed sample is delivered and used exactly once",
        format!(
            "{} committed, {} not delivered, {unused} not used once",
            committed.len(),
            lost.len()
        ),
        lost.is_empty() && unused == 0 && !committed.is_empty(),
    );
    let twice = lives.acks.values().filter(|count| **count > 1).count();
    report.claim(
        "none is acknowledged twice",
        format!("{twice} of {}", lives.acks.len()),
        twice == 0,
    );
    let seen = never.iter().filter(|sample| lives.got.contains(**sample)).count();
    report.claim(
        "what was never committed is never seen",
        format!("{seen} of {} were", never.len()),
        seen == 0,
    );
    report.claim(
        "no get has wrong bytes",
        format!("{} have", lives.wrong),
        lives.wrong == 0,
    );
    judge_failures(report, living);
    judge_remains(report, dead, end);
    report.figure("killed", dead.len());
    report.figure("committed", committed.len());
    report.figure("unclear_acks", lives.unclear.len());
}

fn judge_failures(report: &mut Report, living: &[Member]) {
    let failures: Vec<String> = all(living)
        .filter_map(|event| match event {
            Event::NotPut { why, .. }
            | Event::NotGot { why, .. }
            | Event::NotAcked { why, .. }
            | Event::Trouble { why } => Some(why.clone()),
            _ => None,
        })
        .collect();
    report.claim(
        "no call of those that run on fails",
        format!("{} failed {}", failures.len(), most_frequent(failures.clone())),
        failures.is_empty(),
    );
}

fn judge_remains(report: &mut Report, dead: &[Dead], end: &End) {
    let keys: Vec<ObjectKey> = dead
        .iter()
        .flat_map(|dead| &dead.member.journal.events)
        .filter_map(|event| match event {
            Event::Writing { keys } => Some(keys.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    let probed = end.settings.engine().and_then(|engine| {
        let found = engine.probe(&keys, WITHIN)?;
        Ok(found.iter().filter(|presence| **presence != Presence::Absent).count())
    });
    let left = probed.as_ref().copied().unwrap_or(usize::MAX);
    report.claim(
        "no object of a dead process is left in the engine",
        match &probed {
            Ok(left) => format!("{left} of {} objects that they wrote", keys.len()),
            Err(error) => format!("the probe failed: {error:#}"),
        },
        left == 0 && !keys.is_empty(),
    );
    report.claim(
        "the engine is empty",
        format!("{} objects, {} bytes", end.usage.objects, end.usage.dram_used),
        end.usage.objects == 0 && end.usage.dram_used == 0,
    );
    report.claim(
        "the index is empty",
        format!(
            "{} keys left {:?}",
            end.records.len(),
            end.records.iter().take(3).collect::<Vec<_>>()
        ),
        end.records.is_empty(),
    );
    match end.quota {
        Some(deposits) => report.claim(
            "the quota adds up",
            format!("{deposits} in deposits, of {BUDGET}"),
            deposits == BUDGET,
        ),
        None => report.note("run without a budget: nothing is said about the quota"),
    }
    report.note(format!(
        "{:.1} s after the last producer stopped, everything was used up and freed",
        end.took.as_secs_f64()
    ));
    report.figure("clear_up_s", rounded(end.took.as_secs_f64()));
}

/// The table of points.
fn print_points(report: &mut Report, dead: &[Dead], lives: &Lives<'_>) {
    let mut rows: BTreeMap<Point, [usize; 5]> = BTreeMap::new();
    for dead in dead {
        let [killed, survived, kept, used, seen] = rows.entry(dead.point).or_default();
        *killed += 1;
        let events = &dead.member.journal.events;
        *survived += events
            .iter()
            .filter(|event| matches!(event, Event::Survived { .. }))
            .count();
        *kept += events
            .iter()
            .filter(|event| matches!(event, Event::Committed { .. }))
            .count();
        *used += events
            .iter()
            .filter(|event| matches!(event, Event::Acked { .. }))
            .count();
        *seen += usize::from(in_hands(dead).is_some_and(|sample| lives.got.contains(sample)));
    }
    let mut points = table(&[
        "killed",
        "times",
        "call over before the signal",
        "committed before",
        "acknowledged before",
        "delivered from its hands",
    ]);
    for (point, counts) in &rows {
        let mut row = vec![point.name().to_owned()];
        row.extend(counts.iter().map(usize::to_string));
        if Point::OF_CONSUMERS.contains(point) {
            row[5] = "-".to_owned();
        }
        points.add_row(row);
    }
    report.table(points.to_string());
}
