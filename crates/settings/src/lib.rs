//! Every setting in one table, and the only reader of the places that say them. The command and the Python package both
//! read through it, so one file means the same to both.
//!
//! ```text
//! flags, arguments ▷ variables (TENSORHOLD_…) ▷ the file (--config, TENSORHOLD_CONFIG) ▷ what `tensorhold up` recorded ▷ defaults
//! ```
//! What stands further left counts more. `docs/adr/0014-settings.md` says why it is so.
//!
//! # What must hold
//! - Clusters are not mixed. A place that names a master closes the places below for the other addresses of masters;
//!   one that names an etcd closes them for the login at etcd, because a password is for the etcd that it was given
//!   with. What `tensorhold up` recorded counts only if nothing names an address, and then no login counts.
//! - No error repeats a value: it may be a password in the wrong place.
//! - A secret that stands in a variable is passed on as a reference to it. One that stands in a file is refused if
//!   others may read the file.
//! - No two settings have the same variable, and the defaults are those of the structs that take the settings (tests).
//!
//! | module | its job |
//! |---|---|
//! | `table` | the settings |
//! | `kind` | what a value may be, and its one form in JSON |
//! | `file` | TOML, with the line of each value |
//! | `layers` | which place counts |
//! | `page` | the reference, `docs/settings.md` |

mod file;
mod kind;
mod layers;
mod page;
mod table;

pub use kind::{Kind, parse_bytes};
pub use layers::{Found, Given, Settings, Source};
pub use page::page;
pub use table::{ALL, Setting, differences, setting};

/// The variable that names the file.
pub const CONFIG: &str = "TENSORHOLD_CONFIG";

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
