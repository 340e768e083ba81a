//! A thread's scheduling class: normal (`SCHED_OTHER`) or idle priority (`SCHED_IDLE`).

#![expect(
    unsafe_code,
    reason = "the FFI edge: the kernel's scheduler knows threads by number; each block says why it holds"
)]

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

/// A thread of this process, by its kernel id. Valid only while the thread lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    id: libc::pid_t,
    processor_time: libc::clockid_t,
}

impl Thread {
    /// The calling thread. `None` if the thread already has another scheduling class (batch or real-time): this crate
    /// must not change a class that the program chose.
    pub(crate) fn current() -> Option<Self> {
        // SAFETY: it takes nothing and cannot fail.
        let id = unsafe { libc::gettid() };
        // SAFETY: it reads the policy of a thread by number, and touches no memory.
        let policy = unsafe { libc::sched_getscheduler(id) };
        // SAFETY: it takes nothing and cannot fail.
        let me = unsafe { libc::pthread_self() };
        let mut processor_time = 0;
        // SAFETY: `me` is the calling thread, alive, and the second argument is ours to write.
        let known = unsafe { libc::pthread_getcpuclockid(me, &raw mut processor_time) };
        (policy == libc::SCHED_OTHER && known == 0).then_some(Self { id, processor_time })
    }

    /// Whether the calling thread runs at idle priority.
    pub(crate) fn current_is_behind() -> bool {
        // SAFETY: it reads the policy of the calling thread, which is what 0 means, and touches no memory.
        unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
    }

    /// Moves the thread to idle priority. Returns whether the kernel agreed.
    pub(crate) fn demote(self) -> bool {
        self.place(libc::SCHED_IDLE)
    }

    /// Moves the thread back to normal priority. Returns whether the kernel agreed.
    pub(crate) fn restore(self) -> bool {
        self.place(libc::SCHED_OTHER)
    }

    fn place(self, policy: libc::c_int) -> bool {
        let ordinary = libc::sched_param { sched_priority: 0 };
        // SAFETY: it reads one value of ours; a number that no thread has is an error, not a fault.
        unsafe { libc::sched_setscheduler(self.id, policy, &raw const ordinary) == 0 }
    }

    /// How much processor time the thread has used since it began.
    pub(crate) fn ran(self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes one value of ours; the clock of a thread that is gone is an error, not a fault.
        let known = unsafe { libc::clock_gettime(self.processor_time, &raw mut time) } == 0;
        let seconds = u64::try_from(time.tv_sec).ok()?;
        let nanos = u32::try_from(time.tv_nsec).ok()?;
        known.then(|| Duration::new(seconds, nanos))
    }
}

/// Whether a thread of this process at idle priority may return to normal priority: the kernel wants `CAP_SYS_NICE` or
/// a resource limit for that. Tried once, on a thread created for the purpose, because the answer may be no.
pub(crate) fn may_restore() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let tried = thread::Builder::new()
            .name("tensorhold-step-up".to_owned())
            .spawn(|| Thread::current().is_some_and(|me| me.demote() && me.restore()));
        tried.is_ok_and(|thread| thread.join().unwrap_or(false))
    })
}
