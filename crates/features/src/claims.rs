//! Claims on memory, waited for by tasks: see [`holdfast_engine::busy`] for why there are claims.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use holdfast_core::{Deadline, Result};
use holdfast_engine::busy::Waiting;
use holdfast_engine::{Access, Busy, Claim};

use crate::store::Inner;

/// The claim, if nothing is in its way; else its place in line.
pub(crate) fn at_once(mut waiting: Waiting) -> std::result::Result<Claim, Waiting> {
    match Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(claim) => Ok(claim),
        Poll::Pending => Err(waiting),
    }
}

impl Inner {
    /// Claims all of this memory at once, as soon as no other operation and no late call is in the way. `Unavailable` at
    /// the deadline.
    pub(crate) async fn claim(
        &self,
        operation: &'static str,
        access: Access,
        ranges: Vec<Range<usize>>,
        deadline: Deadline,
    ) -> Result<Arc<Claim>> {
        let waiting = Busy::process().claim(operation, access, ranges)?;
        self.granted(waiting, deadline).await.map(Arc::new)
    }

    /// Waits for the claim of somebody in line. `Unavailable` at the deadline.
    pub(crate) async fn granted(&self, mut waiting: Waiting, deadline: Deadline) -> Result<Claim> {
        let left = deadline.remaining(&*self.clock);
        match tokio::time::timeout(left, &mut waiting).await {
            Ok(claim) => Ok(claim),
            Err(_) => Err(waiting.refusal()),
        }
    }
}
