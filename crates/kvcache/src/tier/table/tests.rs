use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Submit(u64, bool, u64),
    Next(bool),
    Return(usize),
    Land(usize),
    Cancel(u64),
    Pass(u64),
    Drain,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u64..12, any::<bool>(), 0_u64..20).prop_map(|(id, query, within)| Step::Submit(id, query, within)),
        5 => any::<bool>().prop_map(Step::Next),
        4 => (0_usize..8).prop_map(Step::Return),
        4 => (0_usize..8).prop_map(Step::Land),
        2 => (0_u64..12).prop_map(Step::Cancel),
        3 => (0_u64..8).prop_map(Step::Pass),
        3 => Just(Step::Drain),
        1 => Just(Step::Close),
    ]
}

/// What a caller may assume about the operations, and what it must not be told.
#[derive(Default)]
struct Watcher {
    open: HashMap<OperationId, bool>,
    running: Vec<OperationId>,
    landing: Vec<OperationId>,
}

impl Watcher {
    fn see(&mut self, events: Vec<TierEvent>) {
        for event in events {
            match event {
                TierEvent::TimedOut(id) => {
                    let told = self.open.get_mut(&id).expect("advice about something open");
                    assert!(!std::mem::replace(told, true), "{id}: advice twice");
                }
                TierEvent::Done(completion) => {
                    let id = completion.operation;
                    assert!(
                        self.open.remove(&id).is_some(),
                        "KV3: {id} ended twice, or was never accepted"
                    );
                    let busy = self.running.contains(&id) || self.landing.contains(&id);
                    assert!(!busy, "T1: {id} ended while its memory was in use");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn kv3_every_operation_ends_once_and_never_under_io(steps in prop::collection::vec(step(), 0..120)) {
        let mut table = Table::new([3; 4]);
        let mut watcher = Watcher::default();
        let mut now = Timestamp::ORIGIN;
        for step in steps {
            match step {
                Step::Submit(id, query, within) => {
                    let id = OperationId(id);
                    let work = if query { Work::Query(Vec::new()) } else { Work::Backup(Vec::new()) };
                    match table.submit(Operation { id, work }, Duration::from_secs(within), now) {
                        Submitted::Accepted => {
                            prop_assert!(watcher.open.insert(id, false).is_none());
                        }
                        Submitted::AlreadyOpen => prop_assert!(watcher.open.contains_key(&id)),
                        Submitted::Refused(completion) => {
                            prop_assert!(!watcher.open.contains_key(&id));
                            prop_assert_eq!(completion, done(id, 0, Some(Failure::Refused)));
                        }
                    }
                }
                Step::Next(query) => {
                    let lane = if query { Lane::Query } else { Lane::Backup };
                    if let Some(job) = table.next(lane, now) {
                        prop_assert!(job.deadline > now);
                        watcher.running.push(job.id);
                    }
                }
                Step::Return(which) if !watcher.running.is_empty() => {
                    let id = watcher.running.remove(which % watcher.running.len());
                    table.returned(done(id, 1, None));
                    watcher.landing.push(id);
                }
                Step::Land(which) if !watcher.landing.is_empty() => {
                    let id = watcher.landing.remove(which % watcher.landing.len());
                    table.landed(id);
                }
                Step::Return(_) | Step::Land(_) => {}
                Step::Cancel(id) => {
                    let id = OperationId(id);
                    let cancelled = table.cancel(id);
                    let busy = watcher.running.contains(&id) || watcher.landing.contains(&id);
                    prop_assert_eq!(cancelled == Cancelled::Cancelling, busy);
                }
                Step::Pass(seconds) => now = now.after(Duration::from_secs(seconds)),
                Step::Drain => {
                    table.expire(now);
                    watcher.see(table.drain());
                }
                Step::Close => table.close(),
            }
            prop_assert!(table.open_in.iter().all(|open| *open <= 3), "T2");
            prop_assert_eq!(table.open_in.iter().sum::<usize>(), table.open.len());
            prop_assert_eq!(table.open.len(), watcher.open.len());
        }
        // Everything ends if workers return, memory lands and time passes.
        for id in std::mem::take(&mut watcher.running) {
            table.returned(done(id, 0, Some(Failure::Failed)));
            watcher.landing.push(id);
        }
        for id in std::mem::take(&mut watcher.landing) {
            table.landed(id);
        }
        table.expire(now.after(Duration::from_secs(100)));
        watcher.see(table.drain());
        prop_assert!(watcher.open.is_empty() && table.open.is_empty() && table.deadlines.is_empty());
    }
}
