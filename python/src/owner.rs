//! Python objects that threads of the store hold and drop.

use pyo3::prelude::*;
use tensorhold_engine_mooncake::interpreter;

/// Keeps a Python object alive, and with it its memory; any thread may drop it.
#[derive(Debug)]
pub(crate) struct Owner(Option<Py<PyAny>>);

impl Owner {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Some(object))
    }

    /// The object; none only while it is dropped.
    pub(crate) fn object(&self) -> Option<&Py<PyAny>> {
        self.0.as_ref()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut object = self.0.take();
        // At the end of the interpreter it can no longer be dropped, and need not be.
        if interpreter::attach(|_| drop(object.take())).is_none() {
            std::mem::forget(object);
        }
    }
}
