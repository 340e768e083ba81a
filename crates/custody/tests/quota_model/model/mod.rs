//! The quota in a world of two processes: the broker and the sharing that run in production, over a small store.
//!
//! Every process has a broker, one transaction of its task in flight, and one of a free. A transaction is prepared from
//! what is there at one moment and applied at another, when its conditions may no longer hold; its reply may be lost;
//! a process may crash at any moment. Checked in every reachable state:
//!
//! - the deposits and what records were paid with are the budget (LC5);
//! - no waiter is served twice;
//! - no process serves its own waiters for long while another one waits;
//! - when nothing can happen any more, everybody who did not leave was served, and the whole budget is in deposits.

mod explore;
mod scenario;
mod world;

pub(crate) use explore::*;
#[allow(unused_imports, reason = "the example uses fewer")]
pub(crate) use scenario::{Bug, MOST_IN_A_ROW, Scenario};
