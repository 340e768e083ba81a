//! What a partitioned store needs besides its partitions: their names, where samples belong, and takes from any of them.

use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use tensorhold_core::{Partition, SampleId, StoreId};
use tensorhold_features::{GroupName, Lease, Partitions};

use crate::convert::seconds;
use crate::core::Core;
use crate::errors::OrRaise as _;
use crate::lease::PyLease;
use crate::opening::Parts;
use crate::operation::Operation;

/// The names of a store's partitions, in order.
#[pyfunction]
pub(crate) fn partition_names(py: Python<'_>, store: &str, count: u32) -> PyResult<Vec<String>> {
    let all = StoreId::new(store).and_then(|store| Partition::all(&store, count));
    Ok(all.or_raise(py)?.iter().map(ToString::to_string).collect())
}

/// The number of the partition that has a sample, of so many.
#[pyfunction]
pub(crate) fn partition_of(py: Python<'_>, sample: &str, count: u32) -> PyResult<u32> {
    let sample = SampleId::new(sample).or_raise(py)?;
    Ok(Partition::of_sample(&sample, count))
}

/// Takes the next samples of a group from any of all partitions of a store, beginning at one. Result: which, and a list of
/// leases.
#[pyfunction]
pub(crate) fn take_of_any(
    py: Python<'_>,
    partitions: Vec<Py<Core>>,
    first: usize,
    group: &str,
    count: usize,
    timeout: f64,
) -> PyResult<Operation> {
    let parts: PyResult<Vec<Parts>> = partitions.iter().map(|core| core.get().parts(py)).collect();
    let parts = parts?;
    let stores = parts.iter().map(|parts| parts.store.clone()).collect();
    // In the order in which they must go, as in `Parts`.
    let held = (Partitions::new(stores).or_raise(py)?.beginning_at(first), parts);
    let (group, within) = (GroupName::new(group).or_raise(py)?, seconds(timeout).or_raise(py)?);
    let work = async move {
        let held = held; // all of it: a future captures only the fields that it names
        held.0.lease_next(&group, count, within).await
    };
    let deliver = |py: Python<'_>, (at, leases): (usize, Vec<Lease>), _late| {
        let leases: Vec<PyLease> = leases.into_iter().map(PyLease::new).collect();
        (at, leases).into_py_any(py)
    };
    Operation::begin(within, work, deliver).or_raise(py)
}
