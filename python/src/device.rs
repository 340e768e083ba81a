//! Tensors on a device, whose copies Python makes: an object of `tensorhold._device` knows the device's library, its streams
//! and its events. Here it is called from the store's threads.

#![expect(unsafe_code, reason = "the FFI edge: memory of Python objects, named by its address")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tensorhold_core::{Deadline, Error, Result, Retry, SystemClock, TensorName, TensorSpec};
use tensorhold_engine::{HostMemory, Span};
use tensorhold_engine_mooncake::interpreter;
use tensorhold_features::{Destination, Device, DeviceBytes, DeviceCopy, Direction};

use crate::convert::Spec;
use crate::owner::Owner;

const OPERATION: &str = "python.device";
/// How long a thread may wait inside the interpreter, which cannot end meanwhile.
const INSIDE_AT_MOST: Duration = Duration::from_millis(100);

/// A tensor on a device: where it is, and the object that copies its bytes.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct OnDevice {
    address: usize,
    len: usize,
    /// The object that copies its bytes.
    #[pyo3(get)]
    tensor: Py<PyAny>,
}

#[pymethods]
impl OnDevice {
    #[new]
    fn new(address: usize, nbytes: usize, tensor: Py<PyAny>) -> Self {
        Self {
            address,
            len: nbytes,
            tensor,
        }
    }
}

impl OnDevice {
    pub(crate) fn bytes(&self, py: Python<'_>) -> Result<Arc<dyn DeviceBytes>> {
        let library = self
            .tensor
            .getattr(py, "device")
            .map_err(|error| failed(&error.to_string()))?;
        Ok(Arc::new(TensorBytes {
            address: self.address,
            len: self.len,
            tensor: Owner::new(self.tensor.clone_ref(py)),
            library: Arc::new(Library(Owner::new(library))),
        }))
    }
}

/// Calls into Python. An exception is the device's.
fn call<R>(owner: &Owner, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R> {
    let ended = || Error::unavailable(OPERATION, "Python is ending; nothing is copied any more");
    let object = owner.object().ok_or_else(ended)?;
    let called = interpreter::attach(|py| call(object.bind(py)).map_err(|error| failed(&error.to_string())));
    called.ok_or_else(ended)?
}

fn failed(why: &str) -> Error {
    Error::unavailable(
        OPERATION,
        "the device failed to copy; nothing was committed or handed out (the device's own error says why; most such errors \
         last until the process ends)",
    )
    .with_retry(Retry::Never)
    .with("error", why)
}

/// A function of Python's that allocates memory of a device for tensors.
#[derive(Debug)]
pub(crate) struct Allocator(Owner);

impl Allocator {
    pub(crate) fn new(function: Py<PyAny>) -> Self {
        Self(Owner::new(function))
    }

    /// Memory for each tensor.
    pub(crate) async fn allocate(
        self,
        specs: Vec<TensorSpec>,
        within: Duration,
    ) -> Result<Vec<(TensorName, Destination)>> {
        let allocate = move || {
            let given: Vec<Spec> = specs.iter().map(Spec::of).collect();
            let memory = call(&self.0, |function| {
                let tensors: Vec<Option<Py<OnDevice>>> = function.call1((given,))?.extract()?;
                let py = function.py();
                let bytes = |tensor: Option<Py<OnDevice>>| tensor.map(|tensor| tensor.get().bytes(py)).transpose();
                Ok(tensors.into_iter().map(bytes).collect::<Result<Vec<_>>>())
            })??;
            let destination = |bytes: Option<Arc<dyn DeviceBytes>>| match bytes {
                Some(bytes) => Destination::Device(bytes),
                None => Destination::Spans(Vec::new()),
            };
            let names = specs.iter().map(|spec| spec.name().clone());
            Ok(names.zip(memory.into_iter().map(destination)).collect())
        };
        let late = || {
            Error::unavailable(
                OPERATION,
                "the device did not allocate memory in time; nothing was read",
            )
        };
        match tokio::time::timeout(within, tokio::task::spawn_blocking(allocate)).await {
            Ok(allocated) => {
                allocated.map_err(|failure| Error::internal(OPERATION, "an allocation panicked").caused_by(failure))?
            }
            Err(_) => Err(late()),
        }
    }
}

#[derive(Debug)]
struct TensorBytes {
    address: usize,
    len: usize,
    tensor: Owner,
    /// A store keeps it for its stages, and must not keep the tensor.
    library: Arc<Library>,
}

/// The library of a device, by the object that allocates its stages.
#[derive(Debug)]
struct Library(Owner);

#[derive(Debug)]
struct Copy(Owner);

impl DeviceBytes for TensorBytes {
    fn len(&self) -> usize {
        self.len
    }

    fn range(&self) -> Range<usize> {
        self.address..self.address.saturating_add(self.len)
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::<Library>::clone(&self.library)
    }

    fn begin(&self, direction: Direction, at: usize, host: &Span) -> Result<Box<dyn DeviceCopy>> {
        let to_device = direction == Direction::ToDevice;
        let args = (to_device, at, host.address(), host.len());
        let copy = call(&self.tensor, |tensor| Ok(tensor.call_method1("begin", args)?.unbind()))?;
        Ok(Box::new(Copy(Owner::new(copy))))
    }
}

impl Device for Library {
    fn stage(&self, len: usize) -> Result<HostMemory> {
        let allocate =
            |device: &Bound<'_, PyAny>| device.call_method1("stage", (len,))?.extract::<(usize, Py<PyAny>)>();
        let (address, owner) = call(&self.0, allocate)?;
        let base = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: `stage` returns memory of this length that lives as long as its owner, and nothing else uses it.
        unsafe { HostMemory::lent(base, len, Owner::new(owner)) }
    }
}

impl DeviceCopy for Copy {
    fn wait(&mut self, within: Duration) -> Result<bool> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, within);
        loop {
            let left = deadline.remaining(&clock);
            let slice = left.min(INSIDE_AT_MOST).as_secs_f64();
            if call(&self.0, |copy| copy.call_method1("wait", (slice,))?.extract())? {
                return Ok(true);
            }
            if deadline.remaining(&clock).is_zero() {
                return Ok(false);
            }
        }
    }
}
