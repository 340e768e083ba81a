//! The KV tier, as Python sees it: `tensorhold.kv` is built on these.
//!
//! | module | its job |
//! |---|---|
//! | `opening` | from settings to an engine and a page store on it |
//! | `memory` | which memory of Python objects pages may lie in |
//! | `pages` | the page store: blocking calls, without the interpreter's lock |
//! | `plain` | namespaces, operations and completions as plain tuples |
//! | `planner` | page keys and the planner |
//! | `tier` | the tier: carries out operations on its own threads |

mod memory;
mod opening;
pub(crate) mod pages;
mod plain;
pub(crate) mod planner;
pub(crate) mod tier;
