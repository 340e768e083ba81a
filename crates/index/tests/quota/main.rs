//! Credits: a budget that is never exceeded, waits that end, and books that always balance.
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod budget;
mod faults;
mod house;
mod line;
mod random;
mod world;
