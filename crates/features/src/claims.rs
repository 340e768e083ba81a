//! Claims on memory that tasks wait for. [`holdfast_engine::busy`] says why there are claims.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use holdfast_core::{Deadline, Result};
use holdfast_engine::busy::Waiting;
use holdfast_engine::{Access, Busy, Claim};

use crate::store::Inner;

/// The claim, if it is granted at once; otherwise its place in the queue.
pub(crate) fn at_once(mut waiting: Waiting) -> std::result::Result<Claim, Waiting> {
    match Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(claim) => Ok(claim),
        Poll::Pending => Err(waiting),
    }
}

impl Inner {
    /// Claims all of this memory at once, as soon as no other operation and no late call uses it. `Unavailable` at the
    /// deadline.
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

    /// Waits until a queued claim is granted. `Unavailable` at the deadline.
    pub(crate) async fn granted(&self, mut waiting: Waiting, deadline: Deadline) -> Result<Claim> {
        let left = deadline.remaining(&*self.clock);
        match tokio::time::timeout(left, &mut waiting).await {
            Ok(claim) => Ok(claim),
            Err(_) => Err(waiting.refusal()),
        }
    }
}
