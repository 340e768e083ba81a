//! Claims on memory, waited for by tasks: see [`holdfast_engine::busy`] for why there are claims.

use std::ops::Range;
use std::sync::Arc;

use holdfast_core::{Deadline, Result};
use holdfast_engine::{Access, Busy, Claim};

use crate::store::Inner;

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
        let mut waiting = Busy::process().claim(operation, access, ranges)?;
        let left = deadline.remaining(&*self.clock);
        match tokio::time::timeout(left, &mut waiting).await {
            Ok(claim) => Ok(Arc::new(claim)),
            Err(_) => Err(waiting.refusal()),
        }
    }
}
