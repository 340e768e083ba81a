//! Memory of a store as a Python object; the package builds its `Tensor` on it.
//!
//! It cannot be viewed while an engine call may still write there: a get into it that is in flight, or one that ended
//! at its deadline but not in the engine. A view would change by itself, even after a later get was verified.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensorhold_engine::Busy;

use crate::dlpack;
use crate::errors::OrRaise;
use crate::loan_table::Output;
use crate::process::ProcessBound;

/// Registered memory of a store. It returns to the pool when this object, and every view of it, is gone.
#[pyclass(frozen, weakref, module = "tensorhold._tensorhold")]
pub(crate) struct Memory {
    output: ProcessBound<Arc<Output>>,
    address: usize,
    len: usize,
}

impl Memory {
    pub(crate) fn new(output: Arc<Output>) -> Self {
        Self {
            address: output.span().address(),
            len: output.span().len(),
            output: ProcessBound::new(output),
        }
    }

    pub(crate) fn output(&self) -> tensorhold_core::Result<&Arc<Output>> {
        self.output.get("tensor")
    }
}

#[pymethods]
impl Memory {
    /// The address of its first byte.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Its length in bytes; never zero.
    #[getter]
    fn nbytes(&self) -> usize {
        self.len
    }

    /// Raises if an engine call may still write there.
    fn check_settled(&self, py: Python<'_>) -> PyResult<()> {
        // In a forked child no engine writes, and the table belongs to the parent.
        if self.output().is_err() {
            return Ok(());
        }
        let range = self.address..self.address + self.len;
        Busy::process().check_readable("python.view", range).or_raise(py)
    }

    /// A copy of its bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.check_settled(py)?;
        let span = self.output().or_raise(py)?.span();
        PyBytes::new_with(py, self.len, |bytes| span.read(0, bytes).or_raise(py))
    }

    /// A DLPack capsule over it: `versioned` in the layout of DLPack 1.0, otherwise in the older one.
    #[pyo3(signature = (code, bits, shape, versioned))]
    fn dlpack<'py>(
        slf: &Bound<'py, Self>,
        code: u8,
        bits: u8,
        shape: Vec<i64>,
        versioned: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.get();
        this.check_settled(slf.py())?;
        let owner = slf.clone().into_any().unbind();
        dlpack::export(slf.py(), owner, this.address, code, bits, shape, versioned)
    }
}
