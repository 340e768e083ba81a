//! How prefetches end, and how many have ended which way.

use tensorhold_core::Error;

/// How the prefetch of one object ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is in memory: in this process's buffer, or in DRAM of a holder.
    Resident,
    /// There is no such object.
    Absent,
    /// It was not tried, because memory or the queue is short now, or because another program chose its key and may write
    /// other bytes under it.
    Refused,
    /// It was not in memory within its time.
    Expired,
    /// It was not begun: its last waiter cancelled it, its reader read it without it, or the prefetcher was closed.
    Cancelled,
    /// It could not be read.
    Failed(Error),
}

impl Outcome {
    /// Its name, for counters and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Absent => "absent",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Failed(_) => "failed",
        }
    }
}

/// The outcomes so far, over all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is what its name says")]
pub struct OutcomeCounts {
    /// Objects that were asked for, those that joined an attempt of another caller included.
    pub asked: u64,
    /// Attempts that were begun.
    pub begun: u64,
    pub resident: u64,
    pub absent: u64,
    pub refused: u64,
    pub expired: u64,
    pub cancelled: u64,
    pub failed: u64,
}

impl OutcomeCounts {
    pub(super) fn add(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::Resident => &mut self.resident,
            Outcome::Absent => &mut self.absent,
            Outcome::Refused => &mut self.refused,
            Outcome::Expired => &mut self.expired,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::Failed(_) => &mut self.failed,
        } += 1;
    }

    /// All outcomes. As many as were asked for once nothing is pending.
    pub fn ended(&self) -> u64 {
        self.resident + self.absent + self.refused + self.expired + self.cancelled + self.failed
    }
}
