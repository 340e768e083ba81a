//! A device in memory: copies are carried out by a thread of its own, late, out of order and not at all, as a test asks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Clock, Error, Result, SystemClock, Timestamp};
use tensorhold_engine::{HostMemory, Span};
use tensorhold_features::{Device, DeviceBytes, DeviceCopy, Direction};

/// When the device carried out a copy, by its own clock.
pub type CopyTime = (Direction, Timestamp, Timestamp);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Job>,
    takes: Duration,
    held: bool,
    lost: bool,
    ended: bool,
    log: Vec<CopyTime>,
}

#[derive(Debug)]
struct Job {
    direction: Direction,
    bytes: Arc<Mutex<Vec<u8>>>,
    at: usize,
    /// The copy itself must keep the memory (DM3), so the device does not.
    host: Host,
    done: Arc<AtomicUsize>,
}

/// A span by address alone: the test device holds nothing that the store should hold.
#[derive(Debug)]
struct Host(usize, usize);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    clock: SystemClock,
    stages: AtomicUsize,
}

#[derive(Debug)]
pub struct FakeDevice {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl FakeDevice {
    pub fn new() -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            clock: SystemClock::new(),
            stages: AtomicUsize::new(0),
        });
        let on_thread = Arc::clone(&shared);
        Self {
            shared,
            thread: Some(std::thread::spawn(move || on_thread.run())),
        }
    }

    /// Each copy takes so long from now on.
    pub fn set_copy_time(&self, takes: Duration) {
        self.shared.state.lock().takes = takes;
    }

    /// Copies wait, or go on.
    pub fn hold(&self, held: bool) {
        self.shared.state.lock().held = held;
        self.shared.changed.notify_all();
    }

    /// Every wait fails from now on.
    pub fn lose(&self) {
        self.shared.state.lock().lost = true;
        self.shared.changed.notify_all();
    }

    pub fn log(&self) -> Vec<CopyTime> {
        self.shared.state.lock().log.clone()
    }

    /// How many copies have begun and not ended.
    pub fn queued(&self) -> usize {
        self.shared.state.lock().queue.len()
    }

    /// How many bytes of stages were asked for.
    pub fn stage_bytes(&self) -> usize {
        self.shared.stages.load(Ordering::SeqCst)
    }

    pub fn bytes(&self, bytes: Vec<u8>) -> Arc<FakeBytes> {
        Arc::new(FakeBytes {
            device: Arc::clone(&self.shared),
            bytes: Arc::new(Mutex::new(bytes)),
        })
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.ended = true;
            state.held = false;
        }
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let (job, takes) = {
                let mut state = self.state.lock();
                loop {
                    if !state.held
                        && let Some(job) = state.queue.pop_front()
                    {
                        break (job, state.takes);
                    }
                    if state.ended {
                        return;
                    }
                    self.changed.wait(&mut state);
                }
            };
            let begun = self.clock.now();
            #[allow(
                clippy::disallowed_methods,
                reason = "a slow copy takes time; nothing waits for the sleep"
            )]
            std::thread::sleep(takes);
            job.copy();
            let ended = self.clock.now();
            self.state.lock().log.push((job.direction, begun, ended));
            job.done.store(1, Ordering::SeqCst);
            self.changed.notify_all();
        }
    }
}

impl Job {
    fn copy(&self) {
        let mut bytes = self.bytes.lock();
        let Host(address, len) = self.host;
        let device = &mut bytes[self.at..self.at + len];
        let host = std::ptr::with_exposed_provenance_mut::<u8>(address);
        let (from, to) = match self.direction {
            Direction::ToHost => (device.as_ptr(), host),
            Direction::ToDevice => (host.cast_const(), device.as_mut_ptr()),
        };
        #[allow(unsafe_code, reason = "a device writes to memory by its address")]
        // SAFETY: the copy that the store holds keeps the span, and so its memory, until this has ended.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}

impl Device for Shared {
    fn stage(&self, len: usize) -> Result<HostMemory> {
        self.stages.fetch_add(len, Ordering::SeqCst);
        HostMemory::allocate(len)
    }
}

#[derive(Debug)]
pub struct FakeBytes {
    device: Arc<Shared>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl FakeBytes {
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }
}

#[derive(Debug)]
struct FakeCopy {
    device: Arc<Shared>,
    done: Arc<AtomicUsize>,
}

impl DeviceBytes for FakeBytes {
    fn len(&self) -> usize {
        self.bytes.lock().len()
    }

    fn range(&self) -> std::ops::Range<usize> {
        let bytes = self.bytes.lock();
        bytes.as_ptr().addr()..bytes.as_ptr().addr() + bytes.len()
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::<Shared>::clone(&self.device)
    }

    fn begin(&self, direction: Direction, at: usize, host: &Span) -> Result<Box<dyn DeviceCopy>> {
        let done = Arc::new(AtomicUsize::new(0));
        self.device.state.lock().queue.push_back(Job {
            direction,
            bytes: Arc::clone(&self.bytes),
            at,
            host: Host(host.address(), host.len()),
            done: Arc::clone(&done),
        });
        self.device.changed.notify_all();
        let device = Arc::clone(&self.device);
        Ok(Box::new(FakeCopy { device, done }))
    }
}

impl DeviceCopy for FakeCopy {
    fn wait(&mut self, within: Duration) -> Result<bool> {
        let begun = self.device.clock.now();
        let mut state = self.device.state.lock();
        loop {
            if state.lost {
                return Err(Error::internal("device", "the device is lost (as the test asked for)"));
            }
            if self.done.load(Ordering::SeqCst) == 1 {
                return Ok(true);
            }
            let left = within.saturating_sub(self.device.clock.now().since(begun));
            if left.is_zero() {
                return Ok(false);
            }
            self.device.changed.wait_for(&mut state, left);
        }
    }
}
