//! How much memory a decoder takes for an input.
//!
//! A record of fifty bytes can claim a billion objects. A decoder that believes it fills the memory of every process that
//! reads the record, so each target is held to a bound in proportion to its *input*: the program's allocator counts what a
//! thread has taken, and refuses at the bound, which ends the program as any lack of memory does. Both the fuzzer and the
//! replay see that as a crash of that input.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; it only counts and passes on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// For each byte of the input. JSON numbers of one digit become structures of some hundred bytes, and every target reads
/// and writes its input a few times.
const PER_BYTE: usize = 16 << 10;
/// For what does not depend on the input. The most objects that a record may claim are 65,536, each with a key.
const AT_LEAST: usize = 64 << 20;

thread_local! {
    /// What may still be taken; none while nothing is measured.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts what the measured thread takes.
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
    // As above: nothing to count. What was taken before the measurement may be given back within it.
    let _unmeasured = LEFT.try_with(|left| left.set(left.get().map(|some| some.saturating_add(bytes))));
}

/// Runs something that was given so many bytes, within the bound.
pub fn measured<T>(input: usize, run: impl FnOnce() -> T) -> T {
    LEFT.set(Some(AT_LEAST.saturating_add(PER_BYTE.saturating_mul(input))));
    let result = run();
    LEFT.set(None);
    result
}
