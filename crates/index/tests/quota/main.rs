//! Quota: a budget that is never exceeded, waits that end, and books that always balance.
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod budget;
mod faults;
mod one_process;
mod random;
mod shared_queue;
mod world;
