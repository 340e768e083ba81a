//! A writer, as a Python object.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorhold_features::{DescribedRef, PutItem, Stored, Writer};

use crate::convert::{self, each, seconds};
use crate::core::{Item, prepared};
use crate::errors::OrRaise;
use crate::opening::Parts;
use crate::operation::Operation;
use crate::process::ProcessBound;
use crate::tensors::sources;

/// A writer and the parts of its store. It holds the engine, too, so it goes before them (see [`Parts`]).
#[derive(Clone)]
struct OpenWriter {
    writer: Arc<Writer>,
    parts: Parts,
}

/// For futures, as that of [`Parts`]: they would capture the fields in the order in which they use them.
impl Drop for OpenWriter {
    fn drop(&mut self) {}
}

/// Puts samples; those that are under way at the same time go together.
#[pyclass(frozen, name = "Writer", module = "tensorhold._tensorhold")]
pub(crate) struct PyWriter(ProcessBound<OpenWriter>);

impl PyWriter {
    pub(crate) fn new(parts: Parts) -> Self {
        let writer = Arc::new(parts.store.writer());
        Self(ProcessBound::new(OpenWriter { writer, parts }))
    }
}

#[pymethods]
impl PyWriter {
    /// Puts a sample. Result: a list of its reference.
    fn put(&self, py: Python<'_>, item: Item, timeout: f64) -> PyResult<Operation> {
        let open = self.0.get("writer").or_raise(py)?.clone();
        let within = seconds(timeout).or_raise(py)?;
        let prepared = prepared(py, item).map(|(sample, publication, ready)| {
            // From now on, even while this put waits, a later put of the id replaces it, and an abort gives it up.
            let turn = open.writer.begin_put(&sample);
            (sample, publication, ready, turn)
        });
        let work = async move {
            let (sample, publication, ready, turn) = prepared?;
            let mut tensors = sources(&open.parts, vec![ready], within).await?;
            let item = PutItem {
                sample,
                tensors: tensors.pop().unwrap_or_default(),
                publication,
            };
            let put = open.writer.put_begun(turn, item, within).await?;
            Ok(vec![Ok(put)])
        };
        let deliver = |py: Python<'_>, results, late| {
            each(py, results, late, |py, stored: Stored| {
                convert::described(py, &DescribedRef::from(&stored))
            })
        };
        Operation::begin(within, work, deliver).or_raise(py)
    }
}
