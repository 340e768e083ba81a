//! The registry: cells by store, sources, and what has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::cells::{Histogram, SIZES};
use crate::family;
use crate::readings::{Readings, Source};
use crate::store::StoreMetrics;
use crate::text;

/// How many stores have a label of their own. Further ones share one.
pub const MOST_STORES: usize = 64;
const OTHER: &str = "other";
const SETTING: &str = "TENSORHOLD_METRICS";

/// The metrics of a process.
#[derive(Debug)]
pub struct Registry {
    on: bool,
    state: Mutex<State>,
    group_commit: Histogram,
}

#[derive(Default)]
struct State {
    stores: BTreeMap<String, Arc<StoreMetrics>>,
    live: Vec<(u64, Weak<dyn Source>)>,
    next: u64,
    /// The last counts of sources that have ended.
    ended: Readings,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} stores, {} sources", self.stores.len(), self.live.len())
    }
}

impl Registry {
    /// An empty registry, which is on or off.
    pub fn new(on: bool) -> Self {
        Self {
            on,
            state: Mutex::default(),
            group_commit: Histogram::new(&SIZES),
        }
    }

    pub(crate) fn from_environment() -> Self {
        let off = std::env::var_os(SETTING).is_some_and(|value| value.eq_ignore_ascii_case("off"));
        Self::new(!off)
    }

    /// The cells of a store, for as long as the process lives; none if metrics are off. A store that is opened again
    /// goes on with them.
    pub fn store(&self, name: &str) -> Option<Arc<StoreMetrics>> {
        if !self.on {
            return None;
        }
        let mut state = self.state.lock();
        let name = Self::known(&mut state, name);
        Some(Arc::clone(
            state
                .stores
                .entry(name.clone())
                .or_insert_with(|| Arc::new(StoreMetrics::new(name))),
        ))
    }

    fn known(state: &mut State, name: &str) -> String {
        if state.stores.contains_key(name) || state.stores.len() < MOST_STORES {
            name.to_owned()
        } else {
            OTHER.to_owned()
        }
    }

    /// How many transactions the requests to the index's store had; none if metrics are off.
    pub fn group_commit(&self) -> Option<&Histogram> {
        self.on.then_some(&self.group_commit)
    }

    /// Has a source read at every scrape, until the registration is dropped. Its last counts stay.
    #[must_use]
    pub fn register(&'static self, source: Arc<dyn Source>) -> Registration {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        if self.on {
            state.live.push((id, Arc::downgrade(&source)));
        }
        Registration {
            registry: self,
            id,
            source,
        }
    }

    fn end(&self, id: u64, source: &dyn Source) {
        if !self.on {
            return;
        }
        let mut last = Readings::default();
        // Not under the lock: a source takes locks of its own.
        source.read(&mut last);
        let mut state = self.state.lock();
        state.live.retain(|(known, _)| *known != id);
        state.ended.keep(last);
    }

    /// All values now.
    pub fn read(&self) -> Readings {
        if !self.on {
            return Readings::default();
        }
        // One moment for what has ended and what lives, so that nothing is in both or in neither. The sources are read
        // afterwards, not under the lock.
        let (mut readings, stores, live) = {
            let state = self.state.lock();
            let stores: Vec<_> = state.stores.values().cloned().collect();
            let live: Vec<_> = state.live.iter().filter_map(|(_, source)| source.upgrade()).collect();
            (state.ended.clone(), stores, live)
        };
        readings.gauge(&family::BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        readings.histogram(&family::GROUP_COMMIT, &[], &self.group_commit);
        for store in stores {
            store.read(&mut readings);
        }
        for source in live {
            source.read(&mut readings);
        }
        readings
    }

    /// All values now, in the text format of Prometheus (version 0.0.4).
    pub fn text(&self) -> String {
        text::text(&self.read())
    }
}

/// A source that is read at every scrape, until this is dropped.
pub struct Registration {
    registry: &'static Registry,
    id: u64,
    source: Arc<dyn Source>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registration({})", self.id)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.end(self.id, &*self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::Counter;
    use crate::outcome::Outcome;
    use std::time::Duration;

    struct Counted(Counter);

    impl Source for Counted {
        fn read(&self, readings: &mut Readings) {
            readings.counter(&family::PUT, &["a \"store\"\\"], self.0.get());
            readings.gauge(&family::PENDING_FREES, &["a"], 2.5);
            readings.gauge(&family::OLDEST_LEASE, &["a"], 3.0);
        }
    }

    fn registry() -> &'static Registry {
        Box::leak(Box::new(Registry::new(true)))
    }

    fn has(registry: &Registry, line: &str) -> bool {
        registry.text().lines().any(|told| told == line)
    }

    #[test]
    fn equal_labels_are_added_up_and_counts_outlive_their_source() {
        let registry = registry();
        let (one, two) = (Arc::new(Counted(Counter::new())), Arc::new(Counted(Counter::new())));
        let first = registry.register(Arc::clone(&one) as Arc<dyn Source>);
        let second = registry.register(Arc::clone(&two) as Arc<dyn Source>);
        one.0.add(3);
        two.0.add(4);
        assert!(
            has(registry, r#"tensorhold_samples_put_total{store="a \"store\"\\"} 7"#),
            "{}",
            registry.text()
        );
        assert!(has(registry, r#"tensorhold_pending_frees{store="a"} 5"#));
        assert!(has(registry, r#"tensorhold_oldest_lease_seconds{store="a"} 3"#));
        drop(first);
        one.0.add(100);
        assert!(has(
            registry,
            r#"tensorhold_samples_put_total{store="a \"store\"\\"} 7"#
        ));
        assert!(has(registry, r#"tensorhold_pending_frees{store="a"} 2.5"#));
        drop(second);
        assert!(has(
            registry,
            r#"tensorhold_samples_put_total{store="a \"store\"\\"} 7"#
        ));
        assert!(
            !registry.text().contains("pending_frees"),
            "the gauge went with the last source"
        );
    }

    #[test]
    fn a_histogram_is_told_with_cumulative_buckets_and_a_sum() {
        let registry = registry();
        let store = registry.store("s").expect("on");
        store
            .operations
            .ended_by_name("put", Outcome::OK, Duration::from_millis(2));
        store
            .operations
            .ended_by_name("put", Outcome::OK, Duration::from_secs(100));
        let of = |rest: &str| format!(r#"tensorhold_operation_seconds{rest}"#);
        for line in [
            r#"_bucket{store="s",operation="put",outcome="ok",le="0.001"} 0"#,
            r#"_bucket{store="s",operation="put",outcome="ok",le="0.0025"} 1"#,
            r#"_bucket{store="s",operation="put",outcome="ok",le="60"} 1"#,
            r#"_bucket{store="s",operation="put",outcome="ok",le="+Inf"} 2"#,
            r#"_sum{store="s",operation="put",outcome="ok"} 100.002"#,
            r#"_count{store="s",operation="put",outcome="ok"} 2"#,
        ] {
            assert!(has(registry, &of(line)), "{line}\n{}", registry.text());
        }
    }

    #[test]
    fn the_number_of_stores_is_bounded_and_a_store_goes_on_with_its_cells() {
        let registry = registry();
        let names: Vec<String> = (0..2 * MOST_STORES).map(|at| format!("store-{at}")).collect();
        let labels: std::collections::BTreeSet<String> = names
            .iter()
            .filter_map(|name| Some(registry.store(name)?.name().to_owned()))
            .collect();
        assert_eq!(labels.len(), MOST_STORES + 1);
        assert!(labels.contains("other"));
        let (one, again) = (
            registry.store("store-1").expect("on"),
            registry.store("store-1").expect("on"),
        );
        assert!(Arc::ptr_eq(&one, &again));
    }

    #[test]
    fn a_registry_that_is_off_hands_out_nothing_and_tells_nothing() {
        let registry: &'static Registry = Box::leak(Box::new(Registry::new(false)));
        let _registration = registry.register(Arc::new(Counted(Counter::new())));
        assert!(registry.store("s").is_none() && registry.group_commit().is_none());
        assert_eq!(registry.text(), "");
    }
}
