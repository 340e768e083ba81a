//! Claims on memory that tasks wait for. [`tensorhold_engine::busy`] says why there are claims.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tensorhold_engine::Claim;
use tensorhold_engine::busy::Waiting;

/// The claim, if it is granted at once; otherwise its place in the queue.
pub(crate) fn at_once(mut waiting: Waiting) -> std::result::Result<Claim, Waiting> {
    match Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(claim) => Ok(claim),
        Poll::Pending => Err(waiting),
    }
}
