//! The stores of the index that have no settings of their own, also those that begin later.
//!
//! Listing them costs etcd a walk over the keys of all of them, so it is done less often than looks.
//!
//! Each is looked after from the look that finds it, and opened only if it is in use or has something to do. One that has
//! ended is left alone, because it may begin again, and forgotten when it is empty and was unused for long enough: see
//! [`crate::idle`].

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::options::OtherStores;
use crate::state::State;
use crate::tend::{Left, Origin};
use crate::{Watched, tend};

/// The looks for each listing.
const LOOKS: u32 = 4;
/// How long listing the stores may take.
const WITHIN: Duration = Duration::from_secs(10);

/// Looks for stores until it is told to stop, or until the task of one of them has ended by a defect.
pub(crate) async fn discover(state: Arc<State>, others: OtherStores, stop: CancellationToken) {
    let mut tasks = JoinSet::new();
    let mut looks = interval(LOOKS * state.options.look_every);
    // If one store cannot be looked after any more, the others are closed: whatever started the steward starts it again.
    let all = stop.child_token();
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(left) = tasks.join_next() => {
                if matches!(left, Ok(Left::Forgotten)) {
                    continue;
                }
                // No other one ends before it is told to.
                all.cancel();
                break;
            }
            _ = looks.tick() => {}
        }
        let listed = tokio::select! {
            () = stop.cancelled() => break,
            listed = state.connect.stores(WITHIN) => listed,
        };
        let found = match listed {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the stores of the index cannot be listed; trying again");
                state.note_listing(Some(error.to_string()));
                continue;
            }
        };
        state.note_listing(None);
        for store in found {
            if state.add(&store) {
                let watched = Watched {
                    state: Arc::clone(&state),
                    store: Some(store.clone()),
                    stop: all.clone(),
                    is_over: false,
                };
                let origin = Origin::Found {
                    forget_after: others.forget_after,
                };
                let tend = tend::tend(Arc::clone(&state), others.of(store), origin, all.clone());
                tasks.spawn(watched.tend(tend));
            }
        }
    }
    // Each closes its store.
    while tasks.join_next().await.is_some() {}
}
