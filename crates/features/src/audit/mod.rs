//! Comparing what the engine has with what the index knows, both ways, and telling producers of what was lost.
//!
//! - [`orphans`]: objects that no record owns. They hold memory that nobody will ever free.
//! - [`losses`]: records whose objects are gone. Their consumers would find out one by one.
//! - [`told`]: a process learns that a sample that it put was found lost, by whichever process.
//!
//! Any process may audit at any time, several at once: what one has done, the next one finds done.

pub(crate) mod losses;
pub(crate) mod orphans;
pub(crate) mod told;

use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Timestamp};

use crate::runtime::Runtime;

/// The most examples in a report. It bounds the report, whatever was found.
pub const MOST_EXAMPLES: usize = 20;

/// Slows work down to so many items per second.
#[derive(Debug)]
struct Pace {
    rate: Option<u32>,
    begun: Timestamp,
    done: u64,
}

impl Pace {
    fn new(rate: Option<u32>, clock: &dyn Clock) -> Self {
        Self {
            rate,
            begun: clock.now(),
            done: 0,
        }
    }

    /// Waits until so many more items may have been done, or until the deadline.
    async fn did(&mut self, items: usize, runtime: &Runtime, deadline: Deadline) {
        self.done += items as u64;
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else {
            return;
        };
        let due = Duration::from_secs_f64(self.done as f64 / f64::from(rate));
        let pause = due.saturating_sub(runtime.clock.now().since(self.begun));
        tokio::time::sleep(pause.min(runtime.left(deadline))).await;
    }
}
