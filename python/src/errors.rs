//! Converts errors to Python exceptions: one class of `tensorhold.errors` for each kind.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use std::error::Error as _;
use tensorhold_core::{Error, ErrorKind, Result, Retry};

const fn class_name(kind: ErrorKind, late: bool) -> &'static str {
    match kind {
        ErrorKind::Invalid => "Invalid",
        ErrorKind::NotFound => "NotFound",
        ErrorKind::Conflict => "Conflict",
        ErrorKind::Fenced => "Fenced",
        ErrorKind::Capacity => "Capacity",
        ErrorKind::Unavailable if late => "DeadlineExceeded",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::Timeout => "Timeout",
        ErrorKind::Corrupt => "Corrupt",
        ErrorKind::Denied => "Denied",
        ErrorKind::Unsupported => "Unsupported",
        _ => "Internal",
    }
}

const fn retry_name(retry: Retry) -> &'static str {
    match retry {
        Retry::Never => "never",
        Retry::Safe => "safe",
        Retry::Ambiguous => "ambiguous",
    }
}

/// The exception for an error. `late`: the caller's timeout had passed, so `Unavailable` becomes a deadline error.
pub(crate) fn exception(py: Python<'_>, error: &Error, late: bool) -> PyErr {
    match build(py, error, late) {
        Ok(value) => PyErr::from_value(value),
        // For example, a package that is only half installed: then that error is the one to report.
        Err(trouble) => trouble,
    }
}

fn build<'py>(py: Python<'py>, error: &Error, late: bool) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("tensorhold.errors").map(Bound::unbind))?;
    let class = module.bind(py).getattr(class_name(error.kind(), late))?;
    let facts = PyDict::new(py);
    for (name, value) in error.context() {
        facts.set_item(name, value)?;
    }
    if let Some(cause) = causes(error) {
        facts.set_item("cause", cause)?;
    }
    let details = PyDict::new(py);
    details.set_item("retry", retry_name(error.retry()))?;
    details.set_item("operation", error.operation())?;
    details.set_item("facts", facts)?;
    class.cast::<PyType>()?.call((error.message(),), Some(&details))
}

fn causes(error: &Error) -> Option<String> {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(next) = cause {
        texts.push(next.to_string());
        cause = next.source();
    }
    (!texts.is_empty()).then(|| texts.join(": "))
}

/// For errors found before anything is started.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error, false))
    }
}
