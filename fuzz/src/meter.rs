//! Bounds the memory that a decoder takes for an input.
//!
//! A record of fifty bytes can claim a billion objects. A decoder that believes it fills the memory of every process
//! that reads the record. So each target is held to a bound in proportion to its *input*: the program's allocator
//! counts what a thread has allocated, and refuses at the bound, which ends the program as any lack of memory does.
//! Both the fuzzer and the replay see that as a crash of that input.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; it only counts and passes on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The bound for each byte of the input. JSON numbers of one digit become structures of some hundred bytes, and every
/// target reads and writes its input a few times.
const PER_BYTE: usize = 16 << 10;
/// The bound for memory that does not depend on the input. A record may claim at most 65,536 objects, each with a key.
const AT_LEAST: usize = 64 << 20;

thread_local! {
    /// The bytes that may still be allocated; `None` while nothing is measured.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts the allocations of the measured thread.
#[derive(Debug)]
pub struct Meter;

#[global_allocator]
static METER: Meter = Meter;

// SAFETY: every call is passed on to the system's allocator as it came, or answered with null, which the trait allows.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the trait's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller keeps the trait's promises, and `memory` came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn take(bytes: usize) -> bool {
    // A thread that is ending has no counter any more, and is not measured.
    LEFT.try_with(|left| match left.get() {
        None => true,
        Some(some) => {
            let less = some.checked_sub(bytes);
            left.set(less.or(Some(some)));
            less.is_some()
        }
    })
    .unwrap_or(true)
}

fn give(bytes: usize) {
    // As above: nothing to count. Memory allocated before the measurement may be freed within it.
    let _unmeasured = LEFT.try_with(|left| left.set(left.get().map(|some| some.saturating_add(bytes))));
}

/// Runs a function that was given `input` bytes, within the bound.
pub fn measured<T>(input: usize, run: impl FnOnce() -> T) -> T {
    LEFT.set(Some(AT_LEAST.saturating_add(PER_BYTE.saturating_mul(input))));
    let result = run();
    LEFT.set(None);
    result
}
