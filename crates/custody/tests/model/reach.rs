//! Situations that must come up: a model in which nothing happens breaks no invariant either.

use stateright::Property;
use tensorhold_custody::{GroupState, Progress, Reason};

use super::World;
use super::index::{Op, Reply};
use super::process::{Phase, session};
use super::steps::Custody;
use super::sweeper::{Key, Sweeper};

/// A situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Consumed,
    DeadLetter,
    Superseded,
    Abandoned,
    Aborted,
    Lost,
    /// An object without a record: a writer came too late.
    Orphan,
    /// Both sweepers are about to free the same sample.
    DoubleFree,
    /// A reader transfers bytes under a lease that is no longer its own.
    StaleReader,
    /// A reader holds on to a sample that is retired.
    RetiredReader,
    /// A stale token is presented to a record that another process holds.
    StaleAck,
    /// A producer is about to commit a reservation that belongs to another producer by now.
    StaleCommit,
    /// A producer waits for quota.
    Waiting,
    /// A remove has failed before.
    FailedFree,
    /// A lease was undone, and the sample waits with all its attempts.
    Undone,
}

impl Reach {
    pub(crate) fn property(self) -> Property<Custody> {
        match self {
            Self::Consumed => Property::sometimes("consumed", |_, world: &World| retired(world, Reason::Consumed)),
            Self::DeadLetter => {
                Property::sometimes("a dead letter", |_, world: &World| retired(world, Reason::DeadLetter))
            }
            Self::Superseded => {
                Property::sometimes("superseded", |_, world: &World| retired(world, Reason::Superseded))
            }
            Self::Abandoned => Property::sometimes("abandoned", |_, world: &World| retired(world, Reason::Abandoned)),
            Self::Aborted => Property::sometimes("aborted", |_, world: &World| retired(world, Reason::Aborted)),
            Self::Lost => Property::sometimes("lost and told", |_, world: &World| retired(world, Reason::Lost)),
            Self::Orphan => Property::sometimes("an orphan", |_, world: &World| world.orphans().next().is_some()),
            Self::DoubleFree => {
                Property::sometimes("two sweepers free the same", |_, world: &World| double_free(world))
            }
            Self::StaleReader => {
                Property::sometimes("a reader without a lease", |_, world: &World| stale_reader(world))
            }
            Self::RetiredReader => Property::sometimes("a reader of a retired sample", |_, world: &World| {
                world.index.retired.values().any(|kept| !kept.record.may_be_freed())
            }),
            Self::StaleAck => Property::sometimes("an ack is fenced", |model, world| {
                is_fenced(model, world, |op| matches!(op, Op::Ack { .. }))
            }),
            Self::StaleCommit => Property::sometimes("a commit is fenced", |model, world| {
                is_fenced(model, world, |op| matches!(op, Op::Commit { .. }))
            }),
            Self::Undone => Property::sometimes("a take undone", |model, world: &World| {
                world.left.untakes < model.0.left.untakes
                    && world.index.live.iter().flatten().any(|kept| {
                        let waits = |state: &GroupState| state.progress == Progress::Waiting && state.attempts == 0;
                        kept.record.groups.iter().any(waits)
                    })
            }),
            Self::Waiting => Property::sometimes("a producer waits", |_, world: &World| {
                world.processes.iter().any(|process| process.phase == Phase::Waiting)
            }),
            Self::FailedFree => Property::sometimes("a remove is tried again", |_, world: &World| {
                world.index.retired.values().any(|kept| kept.record.failed_frees > 0)
            }),
        }
    }
}

fn retired(world: &World, reason: Reason) -> bool {
    world.index.retired.values().any(|kept| kept.record.reason == reason)
}

fn double_free(world: &World) -> bool {
    let freeing = |sweeper: &Sweeper| match sweeper {
        Sweeper::Freeing(free) | Sweeper::Removed { free, .. } => Some(free.object),
        Sweeper::Looked {
            key: Key::Freeable(object),
            ..
        } => Some(*object),
        _ => None,
    };
    match world.sweepers.as_slice() {
        [one, other] => freeing(one).is_some() && freeing(one) == freeing(other),
        _ => false,
    }
}

fn stale_reader(world: &World) -> bool {
    world.processes.iter().any(|process| {
        process.phase == Phase::Using && process.hold.is_some_and(|hold| world.holds(&hold) == (false, false))
    })
}

/// Whether a process whose session lives is about to be fenced for what it asks.
fn is_fenced(model: &Custody, world: &World, asks: fn(Op) -> bool) -> bool {
    world.processes.iter().any(|process| match process.phase {
        Phase::Asked(request) if asks(request.op) && !world.index.gone.contains(&session(request.process)) => {
            world.clone().execute(&model.0, &request) == Reply::Fenced
        }
        _ => false,
    })
}
