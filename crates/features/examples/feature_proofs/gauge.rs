//! Watching the engine all the time: how many bytes it holds, and what it evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tensorhold_core::{Clock, SystemClock};
use tensorhold_engine::Engine;

use crate::world::WITHIN;

/// The pause between two looks; a look itself takes some milliseconds.
const EVERY: Duration = Duration::from_millis(10);

/// The most that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peak {
    pub(crate) looks: u64,
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
}

/// A thread that looks at the engine's use until it is told to stop.
pub(crate) struct Gauge {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Peak>>>,
}

impl Gauge {
    pub(crate) fn start(engine: Arc<dyn Engine>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let clock = SystemClock::new();
            let mut peak = Peak::default();
            while !told.load(Ordering::Relaxed) {
                let usage = engine.usage(WITHIN)?;
                peak.looks += 1;
                peak.bytes = peak.bytes.max(usage.dram_used);
                peak.objects = peak.objects.max(usage.objects);
                clock.sleep(EVERY);
            }
            Ok(peak)
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn stop(mut self) -> Result<Peak> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().map_err(|_| anyhow!("the gauge panicked"))?
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The proof has failed already; what the gauge saw does not matter any more.
            drop(thread.join());
        }
    }
}

/// A counter of the master, such as `master_evicted_key_count`.
pub(crate) fn master_counter(admin: &[String], name: &str) -> Result<f64> {
    tensorhold_testkit::master_figure(admin.first().context("the cluster has no admin address")?, name)
}
