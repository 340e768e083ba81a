//! The planner, driven through everything that can happen to it.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "helpers of tests fail loudly"
)]

mod actions;
mod carry;
mod cases;
mod determinism;
mod model;
mod property;
mod regression;
mod store;
mod world;
