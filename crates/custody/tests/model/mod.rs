//! The world in which the custody code is checked, one step at a time and in every order.
//!
//! ```text
//!  producers ─┐                                     ┌─▶ index: pending, live, retired records with versions, sessions,
//!  workers   ─┤  one request at a time each, which  │          the shared tick, the budget
//!  readers   ─┼─ may come late, twice or never ─────┤
//!  operator  ─┘                                     └─▶ engine: the objects that are physically there
//!  two sweepers: read a record → decide → write if its version is still the same; remove → delete the record
//! ```
//!
//! Every change of a record is made by the functions of `tensorhold-custody`; the model only decides which process calls
//! them, based on a read of how long ago, and what becomes of the answer.
//!
//! # What can go wrong
//! * **The network.** A request is executed and answered ([`Action::Deliver`]); or its sender stops waiting and reads
//!   back what happened ([`Action::TimeOut`]), and the request arrives later, much later, or never; or it is answered and
//!   arrives once more ([`Action::DeliverTwice`]). A lost reply is a request that arrives right after its sender stopped
//!   waiting. A late reply is the same as a process that pauses after the reply, and a reply that comes twice is told by
//!   its number, so neither needs steps of its own.
//! * **Processes.** Each may crash once at any step (its request still in flight), or pause for so long that its
//!   session ends and its leases are taken back, and come back without knowing. A pause needs no step: the other
//!   processes move on.
//! * **Sweepers.** Both may work on the same record; each may die half-way. Removing objects may fail, or succeed and be
//!   reported as failed.
//! * **The engine** may lose the objects of a committed sample.
//!
//! # Why it ends
//! Ticks, faults, mishaps and tries are budgets ([`Left`]) that only shrink, so there are no cycles, every run ends, and
//! "in the end everything is clean" is a statement about states without a next step: no `eventually` is needed, whose
//! answer stateright does not guarantee where paths join.
//!
//! # Why it is small
//! * Versions, tokens and generations are compared, never added: [`numbers`] renumbers them in their order after every
//!   step, so two histories that differ only in how often something was written meet in one state.
//! * A process that writes on condition of the version it read needs to remember only the version: if it is still the
//!   same, so is the record.
//! * What can have no effect any more is forgotten at once ([`alike`]): a write on condition of a version that is gone.
//! * The sweepers are alike, so are the workers of one group, and late requests; they are kept sorted. So in a path that
//!   is printed, a sweeper or a worker may change its place between two steps.

#![allow(dead_code, reason = "the tests and the example each use a part of it")]

pub(crate) mod alike;
pub(crate) mod check;
pub(crate) mod index;
pub(crate) mod numbers;
pub(crate) mod process;
pub(crate) mod reach;
pub(crate) mod runs;
pub(crate) mod scenario;
pub(crate) mod steps;
pub(crate) mod sweeper;

use std::collections::BTreeSet;

use check::Ghost;
use index::{Index, Request};
use process::Process;
pub(crate) use scenario::{Left, Role, Scenario};
use sweeper::{Key, Sweeper};
use tensorhold_core::Generation;

/// A sample id. The model has a handful of them.
pub(crate) type Sample = u8;

/// The objects of one generation of a sample, as the engine has them: all or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Object {
    pub(crate) sample: Sample,
    pub(crate) generation: Generation,
}

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) index: Index,
    pub(crate) engine: BTreeSet<Object>,
    pub(crate) processes: Vec<Process>,
    pub(crate) sweepers: Vec<Sweeper>,
    /// Requests whose sender no longer waits for them. Sorted.
    pub(crate) late: Vec<Request>,
    pub(crate) left: Left,
    /// What an all-knowing observer remembers, to judge.
    pub(crate) ghost: Ghost,
}

/// What can happen next. A process or a sweeper is named by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The shared clock advances.
    Tick,
    /// A producer asks for quota and, if it has enough, for a reservation.
    Draw(usize),
    /// A producer no longer waits for quota.
    StopWaiting(usize),
    /// A producer commits.
    Commit(usize),
    /// A producer gives up what it reserved.
    Abort(usize),
    /// A worker takes a sample, or a reader reads it.
    Take(usize, Sample),
    /// The transfer has ended: the holder checks whether it still holds the lease, and hands out the bytes, or not.
    /// Then it acknowledges, or (`true`) hands the sample back.
    HandOut(usize, bool),
    /// A sample that a worker leased does not reach it, and is given back as if never leased.
    Untake(usize),
    /// A holder renews its lease.
    Renew(usize),
    /// A holder reads again and acknowledges or releases.
    Ack(usize),
    /// The operator does the next thing of its script.
    Operate(usize),
    /// A process has nothing more to do and ends its session.
    Close(usize),
    /// A request is executed and answered.
    Deliver(usize),
    /// A request is executed and answered, and will arrive once more.
    DeliverTwice(usize),
    /// A process no longer waits for the answer.
    TimeOut(usize),
    /// A process reads back what became of its request.
    ReadBack(usize),
    /// A late request is executed.
    Arrive(usize),
    /// A late request is lost.
    Vanish(usize),
    /// A process dies. Its session does not know yet.
    Crash(usize),
    /// The session of a process ends; the process does not know.
    SessionEnds(usize),
    /// A sweeper reads a record and decides.
    Look(usize, Key),
    /// A sweeper writes what it decided.
    Write(usize),
    /// A sweeper removes the objects of a retired sample.
    Remove(usize),
    /// A sweeper's remove fails; `true`: it took effect all the same.
    RemoveFails(usize, bool),
    /// A sweeper dies and another takes its place.
    SweeperDies(usize),
    /// A process removes objects for which there is no record.
    Audit(Object),
    /// The engine loses the objects of a committed sample.
    Lose(Object),
}
