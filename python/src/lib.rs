//! The compiled module of the Python package `tensorhold`: `tensorhold._tensorhold`.
//!
//! # One pyo3 for two kinds of program
//! An extension must not link libpython: the interpreter that loads it has those symbols. Our test binaries embed an
//! interpreter and must link it. Cargo builds one pyo3 for all members of a workspace build, with the union of their
//! features, so a feature that says "do not link" (`pyo3/extension-module`) would break every test binary. Therefore no
//! manifest here names that feature. Maturin sets it through the environment instead (`PYO3_BUILD_EXTENSION_MODULE`,
//! read by pyo3's build script), so it applies only to the builds that make the extension:
//!
//! | build | libpython | what it is for |
//! |---|---|---|
//! | `maturin build`, `maturin develop` | not linked | the package |
//! | `cargo build`, `clippy`, `nextest`, with any features | linked | checking this crate, running the tests of others |
//!
//! Both share the target folder, and Cargo notices the change: switching from one to the other recompiles pyo3 and the
//! crates that use it, which takes some 20 s.
//!
//! The union does apply to `abi3-py310`: in a build of the whole workspace, the crates below are compiled against the
//! limited API too. That is intended, since they must work with it inside this module.
//!
//! # The interpreter's lock
//! Every step that may wait runs detached from the interpreter, so that other Python threads go on, and because the
//! engine's threads need the lock themselves.
//!
//! | module | its job |
//! |---|---|
//! | `process` | one runtime for each process, and what a fork leaves behind |
//! | `operation` | an operation in flight: waited for, or observed by a callback |
//! | `opening`, `core` | opening a store; its methods |
//! | `loan_table`, `tensors`, `memory`, `dlpack` | tensors in and out, by pointer |
//! | `command` | the `tensorhold` command |
//! | `keys` | the keys of a sealed store, from Python |
//! | `events` | events of this module, to Python's `logging` |
//! | `kv` | the KV tier: page store, planner, tier |
//! | `lease`, `convert`, `errors` | the values and errors that Python sees |

mod command;
mod convert;
mod core;
mod device;
mod dlpack;
mod errors;
mod events;
mod keys;
mod kv;
mod lease;
mod loan_table;
mod memory;
mod named;
mod opening;
mod operation;
mod owner;
mod partitions;
mod process;
mod tensors;
mod writer;

use pyo3::prelude::*;
use tensorhold_engine_mooncake::interpreter;

/// The compiled module of the package `tensorhold`.
#[pymodule]
mod _tensorhold {
    #[pymodule_export]
    use super::{after_fork, finish, metrics_text, spec_bytes, version};
    #[pymodule_export]
    use crate::command::{read_settings, run_command};
    #[pymodule_export]
    use crate::core::{Core, open_store, restore_guard};
    #[pymodule_export]
    use crate::device::OnDevice;
    #[pymodule_export]
    use crate::dlpack::{Imported, import_dlpack};
    #[pymodule_export]
    use crate::events::{next_events, wake_events, want_events};
    #[pymodule_export]
    use crate::kv::pages::{Pages, Prefetch, Settling, open_pages};
    #[pymodule_export]
    use crate::kv::planner::{PageKeys, Planner, namespace_root, object_name};
    #[pymodule_export]
    use crate::kv::tier::Tier;
    #[pymodule_export]
    use crate::lease::{PyAnnounced, PyLease};
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::partitions::{partition_names, partition_of, take_of_any};
    #[pymodule_export]
    use crate::writer::PyWriter;

    #[pymodule_init]
    #[expect(clippy::unnecessary_wraps, reason = "what a module's beginning has to return")]
    fn begin(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::events::collect();
        Ok(())
    }
}

/// The release of Tensorhold that this package was built from.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Call it when the interpreter ends and every store is closed: no thread of Tensorhold's calls into Python from then on.
/// Waits for those that are inside, and returns whether all have left.
#[pyfunction]
fn finish(py: Python<'_>, within: f64) -> PyResult<bool> {
    use errors::OrRaise as _;
    let within = convert::seconds(within).or_raise(py)?;
    Ok(py.detach(|| interpreter::end(within)))
}

/// Call it in a forked child.
#[pyfunction]
fn after_fork() {
    interpreter::after_fork();
}

/// The metrics of this process, in the text format of Prometheus.
#[pyfunction]
fn metrics_text(py: Python<'_>) -> String {
    py.detach(|| tensorhold_metrics::registry().text())
}

/// The number of bytes of a tensor of this element type and shape.
#[pyfunction]
fn spec_bytes(py: Python<'_>, dtype: &str, shape: Vec<u64>) -> PyResult<u64> {
    use errors::OrRaise as _;
    Ok(tensors::spec("tensor", dtype, shape).or_raise(py)?.bytes())
}
