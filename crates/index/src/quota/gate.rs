//! One of a process at a time, and once for all who came before it began.
//!
//! What many want at the same moment, and what is the same whoever does it, is done by one of them: the others would only
//! get in its way, because they write the same key. Who comes while it is under way cannot know whether it was seen, so one
//! of those who came does it once more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(super) struct Gate {
    one: Mutex<()>,
    begun: AtomicU64,
    /// The number of the last one that was done.
    done: AtomicU64,
}

/// The one who does it.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    number: u64,
    _one: MutexGuard<'a, ()>,
}

impl Gate {
    /// None if another has done it meanwhile, or the time is up.
    pub(super) async fn pass(&self, within: Duration) -> Option<Pass<'_>> {
        let before = self.begun.load(Ordering::SeqCst);
        let one = tokio::time::timeout(within, self.one.lock()).await.ok()?;
        if self.done.load(Ordering::SeqCst) > before {
            return None;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Pass {
            gate: self,
            number,
            _one: one,
        })
    }
}

impl Pass<'_> {
    /// It is done: whoever came before it began need not do it.
    pub(super) fn finish(self) {
        self.gate.done.store(self.number, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn one_does_it_for_all_who_came_before_it_began() {
        let gate = Arc::new(Gate::default());
        let first = gate.pass(WITHIN).await.expect("nobody else is there");
        let come = |gate: &Arc<Gate>| {
            let gate = Arc::clone(gate);
            tokio::spawn(async move {
                let pass = gate.pass(WITHIN).await;
                let did_it = pass.is_some();
                if let Some(pass) = pass {
                    pass.finish();
                }
                did_it
            })
        };
        let others = [come(&gate), come(&gate), come(&gate)];
        tokio::task::yield_now().await;
        first.finish();
        let mut did_it = 0;
        for other in others {
            did_it += u32::from(other.await.expect("no panic"));
        }
        assert_eq!(
            did_it, 1,
            "they came when it had begun: one of them does it once more, for all of them"
        );
        assert!(gate.pass(WITHIN).await.is_some(), "nobody is there any more");
    }

    #[tokio::test]
    async fn what_was_not_done_is_done_by_the_next() {
        let gate = Gate::default();
        let given_up = gate.pass(WITHIN).await.expect("nobody else is there");
        // Both come before the other one begins, and neither does it.
        let come = async || gate.pass(WITHIN).await.is_some();
        let (one, other, ()) = tokio::join!(come(), come(), async {
            tokio::task::yield_now().await;
            drop(given_up);
        });
        assert!(one && other);
        let held = gate.pass(WITHIN).await;
        assert!(held.is_some());
        assert!(gate.pass(Duration::from_millis(1)).await.is_none(), "the time is up");
    }
}
