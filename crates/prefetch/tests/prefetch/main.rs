//! The prefetcher on the memory engine, step by step.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod bugs;
mod property;
mod races;
mod world;
