//! Putting a sample anew, at another holder, after its bytes met one that does not answer.
//!
//! The engine goes on giving out a dead holder's space until it notices: about ten seconds. A put that gets some of it fails,
//! and its keys are spent: no key is ever put twice. So the put begins anew, as another put of the same sample: its
//! reservation is given up, what was written is removed, and other keys are reserved and written.
//!
//! ```text
//!           reason=holder, and time is left          a pause, the next holder is preferred
//! reserved ────────────────────────────────▶ given up ──────────────────────────────────────▶ prepared (module `put`)
//!     │ no time is left, or it cannot be given up
//!     ▼
//!  undone, with the error
//! ```
//! - All objects of an attempt prefer one holder, and each attempt another one: of *n* holders, of which one is dead, all but
//!   one attempt in *n* succeed. Which one it is, the engine does not tell. Only attempts after the first prefer any.
//! - All calls of the attempt have returned when it has failed for this reason before the deadline: what they wrote is removed
//!   at once. A call that runs into the deadline fails for another reason.
//! - With a budget, the attempt's quota comes back when its objects are removed; the next one waits for quota like any put.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, Result, Rng};
use tensorhold_index::Session;

use crate::ops::put::{OPERATION, Ready, Stored};
use crate::ops::put_reserve::Reserved;
use crate::store::Inner;

/// The pause before the second attempt. Each later one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The least time in which another attempt may end well.
const LEAST: Duration = Duration::from_millis(100);

/// How samples are put.
pub(super) struct Attempt {
    /// Under reservations that were made ahead, if there are enough.
    pub(super) ahead: bool,
    /// The holders to write to first.
    pub(super) prefer: Vec<String>,
    /// Which holder is preferred first: drawn, so that processes begin with different ones.
    first: u64,
    /// How many attempts have met a dead holder.
    failed: u32,
}

impl Attempt {
    pub(super) fn first(rng: &dyn Rng) -> Self {
        Self {
            ahead: true,
            prefer: Vec::new(),
            first: rng.next_u64() >> 32,
            failed: 0,
        }
    }
}

/// What is to be put again.
#[derive(Default)]
pub(super) struct Again {
    pub(super) samples: Vec<Ready>,
    /// Whether some of it met a dead holder.
    pub(super) elsewhere: bool,
}

impl Inner {
    /// The sample, to be put again, if its put failed because of a holder. Otherwise its result.
    pub(super) async fn to_put_elsewhere(
        &self,
        session: &Arc<Session>,
        sample: Reserved,
        error: Error,
        deadline: Deadline,
    ) -> std::result::Result<Ready, (usize, Result<Stored>)> {
        let at = sample.at;
        let met_dead_holder = error.kind() == ErrorKind::Unavailable && error.fact("reason") == Some("holder");
        if !met_dead_holder || self.runtime.left(deadline) < LEAST || sample.begun.counts().is_err() {
            return Err((at, Err(self.undo(session, sample, error))));
        }
        // The name is free for the next attempt only when this one has left it. A reservation made ahead has another one.
        if sample.prepared.reserved_as.is_none() {
            let (left, wanted) = (self.runtime.left(deadline), std::slice::from_ref(&sample.reference));
            let given_up = self.runtime.index.abort(session, wanted, left).await;
            if let Some(Err(cause)) = given_up.into_iter().next() {
                tracing::debug!(%cause, "a put is not made anew: its reservation was not given up");
                return Err((at, Err(self.undo(session, sample, error))));
            }
        }
        tracing::debug!(sample = %sample.prepared.sample, %error, "a holder does not answer; putting the sample at another one");
        Ok(self.to_put_again(session, sample))
    }

    /// Prepares the attempt after one that left these samples.
    pub(super) async fn prepare_next(&self, attempt: &mut Attempt, again: &Again, deadline: Deadline) {
        attempt.ahead = false;
        if !again.elsewhere {
            return;
        }
        let pause = FIRST_PAUSE
            .saturating_mul(1 << attempt.failed.min(10))
            .min(LONGEST_PAUSE);
        attempt.failed = attempt.failed.saturating_add(1);
        // Most of the time is the next attempt's.
        tokio::time::sleep(pause.min(self.runtime.left(deadline) / 4)).await;
        let engine = Arc::clone(&self.runtime.engine);
        let call = move |within| engine.holders(within);
        attempt.prefer = match self.runtime.blocking.run(OPERATION, deadline, call).await {
            Ok(holders) if !holders.is_empty() => {
                let at = (attempt.first + u64::from(attempt.failed)) % holders.len() as u64;
                let chosen = usize::try_from(at).ok().and_then(|at| holders.get(at));
                chosen.map(|holder| holder.name.clone()).into_iter().collect()
            }
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::debug!(%error, "the engine does not say which holders it has; it chooses by itself");
                Vec::new()
            }
        };
    }
}
