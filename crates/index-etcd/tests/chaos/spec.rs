//! What one sample may go through, as a sequential specification, and the check of a history against it.
//!
//! Samples are independent of each other, so a history is linearizable if that of each sample is.

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::history::{Ask, Operation, Step};

/// The state of a sample. A number that no worker was told is `None` and fits every number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sample {
    #[default]
    Nothing,
    Reserved(Option<u64>),
    Ready(u64),
    Leased(u64, Option<u64>),
    Done,
    Abandoned,
}

fn fits(known: Option<u64>, told: u64) -> bool {
    known.is_none_or(|known| known == told)
}

impl SequentialSpec for Sample {
    type Op = Ask;
    type Ret = Step;

    /// Only called for operations whose answer no worker got: they do what they can.
    fn invoke(&mut self, ask: &Ask) -> Step {
        match (*ask, self.clone()) {
            (Ask::Reserve, Self::Nothing) => *self = Self::Reserved(None),
            (Ask::Commit { generation }, Self::Reserved(known)) if fits(known, generation) => {
                *self = Self::Ready(generation)
            }
            (Ask::Lease, Self::Ready(generation) | Self::Leased(generation, _)) => {
                *self = Self::Leased(generation, None)
            }
            (Ask::Ack { generation, token }, Self::Leased(live, known)) if live == generation && fits(known, token) => {
                *self = Self::Done;
            }
            _ => {}
        }
        Step::CommitRefused { generation: 0 }
    }

    fn is_valid_step(&mut self, _: &Ask, told: &Step) -> bool {
        let next = match (*told, self.clone()) {
            (Step::Reserved { generation }, Self::Nothing) => Self::Reserved(Some(generation)),
            (Step::Committed { generation }, Self::Reserved(known)) if fits(known, generation) => {
                Self::Ready(generation)
            }
            // Refused because its session was over: from then on it can never be committed.
            (Step::CommitRefused { .. }, Self::Reserved(_) | Self::Abandoned) => Self::Abandoned,
            // A lease that was over is taken back by a sweep, which is no worker's operation; then the next lease
            // comes.
            (Step::Leased { generation, token }, Self::Ready(live)) if live == generation => {
                Self::Leased(live, Some(token))
            }
            (Step::Leased { generation, token }, Self::Leased(live, older))
                if live == generation && older.is_none_or(|older| older < token) =>
            {
                Self::Leased(live, Some(token))
            }
            // The only way to be done, and only for the one that has it.
            (Step::Acked { generation, token }, Self::Leased(live, known))
                if live == generation && fits(known, token) =>
            {
                Self::Done
            }
            // Refused because the lease was over.
            (Step::AckRefused { token, .. }, Self::Leased(live, Some(known))) if known == token => Self::Ready(live),
            (Step::AckRefused { .. }, state) => state,
            _ => return false,
        };
        *self = next;
        true
    }
}

/// Whether the history of one sample is linearizable.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let mut events: Vec<(u64, bool, &Operation)> = Vec::new();
    for operation in operations {
        events.push((operation.from, false, operation));
        if let Some((at, _)) = operation.end {
            events.push((at, true, operation));
        }
    }
    // At the same nanosecond the question goes first: that makes fewer things certain, never more.
    events.sort_by_key(|(at, is_end, _)| (*at, *is_end));
    let mut tester = LinearizabilityTester::new(Sample::default());
    for (_, is_end, operation) in events {
        let recorded = match (is_end, operation.end) {
            (true, Some((_, step))) => tester.on_return(operation.id, step).map(drop),
            _ => tester.on_invoke(operation.id, operation.ask).map(drop),
        };
        recorded?;
    }
    if tester.is_consistent() {
        Ok(())
    } else {
        Err(format!("not linearizable: {operations:#?}"))
    }
}
