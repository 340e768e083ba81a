//! Samples that this process holds, as Python objects: leases, and announced samples.

use pyo3::prelude::*;
use tensorhold_features::{Announced, DescribedRef, Lease};

use crate::convert::{Spec, described};
use crate::errors::OrRaise;
use crate::process::ProcessBound;

/// A lease. If it is dropped unanswered, it is released in the background.
#[pyclass(frozen, name = "Lease", module = "tensorhold._tensorhold")]
pub(crate) struct PyLease(ProcessBound<Lease>);

impl PyLease {
    pub(crate) fn new(lease: Lease) -> Self {
        Self(ProcessBound::new(lease))
    }

    pub(crate) fn lease(&self, py: Python<'_>) -> PyResult<Lease> {
        self.0.get("lease").cloned().or_raise(py)
    }
}

#[pymethods]
impl PyLease {
    /// The sample and its generation.
    #[getter]
    fn reference(&self, py: Python<'_>) -> PyResult<(String, u64)> {
        let reference = self.lease(py)?.reference();
        Ok((reference.sample.to_string(), reference.generation.get()))
    }

    /// The same, with the bytes of its description.
    #[getter]
    fn described(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        described(py, &DescribedRef::from(&self.lease(py)?))
    }

    /// The group; `None` for a read.
    #[getter]
    fn group(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.lease(py)?.group().map(|group| group.to_string()))
    }

    /// The fencing token.
    #[getter]
    fn token(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lease(py)?.token().0)
    }

    /// Whether it was answered.
    #[getter]
    fn answered(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lease(py)?.is_answered())
    }

    /// Its tensors: name, element type, shape, bytes.
    #[getter]
    fn specs(&self, py: Python<'_>) -> PyResult<Vec<Spec>> {
        let lease = self.lease(py)?;
        let tensors = lease.description().tensors();
        Ok(tensors.iter().map(|tensor| Spec::of(&tensor.spec)).collect())
    }
}

/// A sample that another writer is about to write.
#[pyclass(frozen, name = "Announced", module = "tensorhold._tensorhold")]
pub(crate) struct PyAnnounced(ProcessBound<Announced>);

impl PyAnnounced {
    pub(crate) fn new(announced: Announced) -> Self {
        Self(ProcessBound::new(announced))
    }

    pub(crate) fn announced(&self, py: Python<'_>) -> PyResult<Announced> {
        self.0.get("announced sample").cloned().or_raise(py)
    }
}

#[pymethods]
impl PyAnnounced {
    /// The sample and the generation that it will have.
    #[getter]
    fn reference(&self, py: Python<'_>) -> PyResult<(String, u64)> {
        let announced = self.announced(py)?;
        let reference = announced.reference();
        Ok((reference.sample.to_string(), reference.generation.get()))
    }

    /// The same as a `SampleRef`.
    #[getter(r#ref)]
    fn sample_ref<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let class = py.import("tensorhold")?.getattr("SampleRef")?;
        class.call1(self.reference(py)?)
    }

    /// The keys of all objects that may be written for it.
    #[getter]
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.announced(py)?.keys().iter().map(ToString::to_string).collect())
    }
}
