//! Processes on this machine that may outlive the program that started them: which they are, and how they are ended.
//!
//! Used by the test kit for its clusters, and by `tensorhold up` and `tensorhold down`.

mod identity;

pub use identity::{ProcessIdentity, is_stopped, signal};
