//! The KV tier: an L3 for the KV pages of serving engines.
//!
//! [`plan`] decides, without I/O: page keys, a radix index, page pools, request states, and a planner that turns events
//! into operations. [`tier`] carries the operations out over the engine. A page is content-addressed and expendable:
//! presence in the engine is a hint, a miss means recompute, and a page whose bytes are not exactly right is a miss.

pub mod plan;
pub mod tier;

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
