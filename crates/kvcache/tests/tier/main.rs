//! The page store and the tier on the memory engine, behind a fault injector, and on an engine that misbehaves.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod direct;
mod operations;
mod pages;
mod random;
mod sealed_pages;
mod wrong_pages;
