//! The wheel's `MooncakeDistributedStore`, call by call.
//!
//! Each function here is one call of the module: Rust values in, result codes out, no decisions. The interpreter's lock
//! is held while arguments are built and results are read. The module itself releases the lock while it waits for the
//! network and while bytes move (a test pins this).

use std::thread;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use tensorhold_core::{Error, ObjectKey, Result};
use tensorhold_engine::{Pin, PutOptions, Transfer};

use crate::config::MooncakeConfig;
use crate::{exit, interpreter};

const MODULE: &str = "mooncake.store";

/// A connected store object.
#[derive(Debug)]
pub(crate) struct Store {
    object: Py<PyAny>,
    replicate_config: Py<PyAny>,
    soft_pin: Py<PyAny>,
}

/// Turns a Python exception into a Tensorhold error.
fn raised(operation: &'static str, message: &'static str) -> impl Fn(PyErr) -> Error {
    move |exception| Error::internal(operation, message).with("exception", exception)
}

/// Calls `work` with the interpreter's lock held.
fn attached<R>(operation: &'static str, work: impl for<'py> FnOnce(Python<'py>) -> Result<R>) -> Result<R> {
    interpreter::attach(work).unwrap_or_else(|| {
        let message = "the Python interpreter is ending; close stores before the program ends";
        Err(Error::unavailable(operation, message).with_retry(tensorhold_core::Retry::Never))
    })
}

fn module(py: Python<'_>, untested_release: bool) -> Result<Bound<'_, PyModule>> {
    #[cfg(feature = "embed")]
    crate::embed::prepare(py)?;
    crate::release::check(py, untested_release)?;
    load(py)?;
    py.import(MODULE).map_err(not_loaded)
}

fn not_loaded(exception: PyErr) -> Error {
    Error::new(
        tensorhold_core::ErrorKind::Unsupported,
        "mooncake.load",
        "the engine's Python module cannot be loaded; install mooncake-transfer-engine-non-cuda (or its CUDA build) \
         into the Python environment that this program uses",
    )
    .with("exception", exception)
}

/// Loads the module in a thread that ends at once.
///
/// The binding library of the module (pybind11) remembers, for the thread that loads it first, that thread's Python
/// state, and uses it whenever a call of that thread takes the interpreter's lock again. But CPython frees the state of a
/// thread of ours when the thread leaves the interpreter. A later call on the same thread would work with freed memory:
/// `create_move_task` ended the process by SIGSEGV.
fn load(py: Python<'_>) -> Result<()> {
    let loading = || attached("mooncake.load", |py| py.import(MODULE).map(drop).map_err(not_loaded));
    py.detach(|| thread::scope(|scope| scope.spawn(loading).join()))
        .unwrap_or_else(|_| Err(Error::internal("mooncake.load", "loading the engine's module panicked")))
}

impl Store {
    /// Loads the module, creates a store and connects it. Blocks until the engine has accepted or refused.
    pub(crate) fn connect(config: &MooncakeConfig) -> Result<Self> {
        const OPERATION: &str = "mooncake.connect";
        let odd = raised(OPERATION, "setting up the engine's client raised an exception");
        attached(OPERATION, |py| {
            set_environment(py, config).map_err(&odd)?;
            let module = module(py, config.untested_release)?;
            let object = module
                .getattr("MooncakeDistributedStore")
                .and_then(|class| class.call0())
                .map_err(&odd)?;
            let settings = settings(py, config).map_err(&odd)?;
            let code: PyResult<i64> = object
                .call_method("setup", (), Some(&settings))
                .and_then(|c| c.extract());
            // Whatever the outcome: the library has registered its exit handler by now, so ours runs before it.
            exit::register();
            let code = code.map_err(&odd)?;
            if code != 0 {
                return Err(crate::codes::error(OPERATION, code, tensorhold_core::Retry::Safe)
                    .with("master", &config.master)
                    .with("metadata", &config.metadata)
                    .with("protocol", &config.protocol));
            }
            Self::new(&module, object.unbind()).map_err(&odd)
        })
    }

    /// Uses a store that the caller has connected, without taking its ownership.
    pub(crate) fn adopt(object: Py<PyAny>, untested_release: bool) -> Result<Self> {
        attached("mooncake.adopt", |py| {
            let module = module(py, untested_release)?;
            // The caller has set the store up, so the library's exit handler is registered.
            exit::register();
            Self::new(&module, object).map_err(raised("mooncake.adopt", "the engine's module lacks a class"))
        })
    }

    fn new(module: &Bound<'_, PyModule>, object: Py<PyAny>) -> PyResult<Self> {
        Ok(Self {
            object,
            replicate_config: module.getattr("ReplicateConfig")?.unbind(),
            soft_pin: module.getattr("SoftPinAction")?.getattr("ENABLE")?.unbind(),
        })
    }

    /// Ends the connection. No call into the store may be in flight.
    pub(crate) fn close(&self) -> Result<()> {
        let code = self.one("mooncake.close", |py, store| store.call_method0(intern!(py, "close")))?;
        if code == 0 {
            Ok(())
        } else {
            Err(crate::codes::error(
                "mooncake.close",
                code,
                tensorhold_core::Retry::Never,
            ))
        }
    }

    pub(crate) fn register(&self, address: usize, len: usize) -> Result<i64> {
        self.one("engine.register", |py, store| {
            store.call_method1(intern!(py, "register_buffer"), (address, len))
        })
    }

    pub(crate) fn unregister(&self, address: usize) -> Result<i64> {
        self.one("engine.unregister", |py, store| {
            store.call_method1(intern!(py, "unregister_buffer"), (address,))
        })
    }

    pub(crate) fn put(&self, batch: &[Transfer], options: &PutOptions) -> Result<Vec<i64>> {
        self.many("engine.put", batch.len(), |py, store| {
            let config = self.replication(py, options)?;
            let (keys, buffers) = (names(py, batch.iter().map(|t| &t.key))?, Buffers::new(py, batch)?);
            let method = if buffers.scattered {
                intern!(py, "batch_put_from_multi_buffers")
            } else {
                intern!(py, "batch_put_from")
            };
            store.call_method1(method, (keys, buffers.addresses, buffers.sizes, config))
        })
    }

    pub(crate) fn get(&self, batch: &[Transfer]) -> Result<Vec<i64>> {
        self.many("engine.get", batch.len(), |py, store| {
            let (keys, buffers) = (names(py, batch.iter().map(|t| &t.key))?, Buffers::new(py, batch)?);
            let method = if buffers.scattered {
                intern!(py, "batch_get_into_multi_buffers")
            } else {
                intern!(py, "batch_get_into")
            };
            store.call_method1(method, (keys, buffers.addresses, buffers.sizes))
        })
    }

    pub(crate) fn remove(&self, keys: &[ObjectKey]) -> Result<Vec<i64>> {
        const FORCE: bool = true;
        self.many("engine.remove", keys.len(), |py, store| {
            store.call_method1(intern!(py, "batch_remove"), (names(py, keys)?, FORCE))
        })
    }

    /// Whether the engine has these objects: 1, 0, or a code. It grants a lease to each that it has.
    pub(crate) fn exist(&self, keys: &[ObjectKey]) -> Result<Vec<i64>> {
        self.many("engine.probe", keys.len(), |py, store| {
            store.call_method1(intern!(py, "batch_is_exist"), (names(py, keys)?,))
        })
    }

    /// Asks for replica descriptors and discards them: the question counts as a hit on each object.
    pub(crate) fn touch(&self, keys: &[ObjectKey]) -> Result<()> {
        attached("engine.raise", |py| {
            names(py, keys)
                .and_then(|keys| {
                    self.object
                        .bind(py)
                        .call_method1(intern!(py, "batch_get_replica_desc"), (keys,))
                })
                .map(drop)
                .map_err(raised("engine.raise", "the engine's module raised an exception"))
        })
    }

    /// Asks for one task per object: the module has no batch of them.
    pub(crate) fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str) -> Result<Vec<i64>> {
        const OPERATION: &str = "engine.relocate";
        attached(OPERATION, |py| {
            let (store, method) = (self.object.bind(py), intern!(py, "create_move_task"));
            let ask = |key: &ObjectKey| {
                let answer = store.call_method1(method, (key.as_str(), from, to))?;
                // The task's id, and the code. What became of the task is seen by where the object is.
                answer.get_item(1)?.extract()
            };
            let asked: PyResult<Vec<i64>> = keys.iter().map(ask).collect();
            asked.map_err(raised(OPERATION, "the engine's module raised an exception"))
        })
    }

    fn replication<'py>(&self, py: Python<'py>, options: &PutOptions) -> PyResult<Bound<'py, PyAny>> {
        let config = self.replicate_config.bind(py).call0()?;
        if options.replicas != 1 {
            config.setattr(intern!(py, "replica_num"), options.replicas)?;
        }
        match options.pin {
            Pin::Evictable => {}
            Pin::Hard => config.setattr(intern!(py, "with_hard_pin"), true)?,
            Pin::Soft(ttl) => {
                config.setattr(intern!(py, "soft_pin_action"), &self.soft_pin)?;
                config.setattr(
                    intern!(py, "soft_pin_ttl_ms"),
                    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
                )?;
            }
        }
        if !options.preferred_segments.is_empty() {
            config.setattr(intern!(py, "preferred_segments"), &options.preferred_segments)?;
        }
        Ok(config)
    }

    fn one(
        &self,
        operation: &'static str,
        call: impl for<'py> FnOnce(Python<'py>, &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
    ) -> Result<i64> {
        attached(operation, |py| {
            call(py, self.object.bind(py))
                .and_then(|code| code.extract())
                .map_err(raised(operation, "the engine's module raised an exception"))
        })
    }

    fn many(
        &self,
        operation: &'static str,
        expected: usize,
        call: impl for<'py> FnOnce(Python<'py>, &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
    ) -> Result<Vec<i64>> {
        let codes: Vec<i64> = attached(operation, |py| {
            call(py, self.object.bind(py))
                .and_then(|codes| codes.extract())
                .map_err(raised(operation, "the engine's module raised an exception"))
        })?;
        if codes.len() != expected {
            return Err(Error::internal(
                operation,
                "the engine returned a different number of results than objects in the batch",
            )
            .with("expected", expected)
            .with("got", codes.len()));
        }
        Ok(codes)
    }
}

/// The memory of a batch, as the module wants it: plain lists, or lists of lists if any object has several buffers.
struct Buffers<'py> {
    addresses: Bound<'py, PyList>,
    sizes: Bound<'py, PyList>,
    scattered: bool,
}

impl<'py> Buffers<'py> {
    fn new(py: Python<'py>, batch: &[Transfer]) -> PyResult<Self> {
        let scattered = batch.iter().any(|transfer| transfer.parts.len() != 1);
        let (addresses, sizes) = if scattered {
            let addresses: Vec<Vec<usize>> = each(batch, |part| part.address());
            let sizes: Vec<Vec<usize>> = each(batch, |part| part.len());
            (PyList::new(py, addresses)?, PyList::new(py, sizes)?)
        } else {
            let parts: Vec<_> = batch.iter().flat_map(|transfer| &transfer.parts).collect();
            (
                PyList::new(py, parts.iter().map(|part| part.address()))?,
                PyList::new(py, parts.iter().map(|part| part.len()))?,
            )
        };
        Ok(Self {
            addresses,
            sizes,
            scattered,
        })
    }
}

fn each(batch: &[Transfer], figure: impl Fn(&tensorhold_engine::Span) -> usize) -> Vec<Vec<usize>> {
    batch
        .iter()
        .map(|transfer| transfer.parts.iter().map(&figure).collect())
        .collect()
}

fn names<'a, 'py>(
    py: Python<'py>,
    keys: impl IntoIterator<Item = &'a ObjectKey, IntoIter: ExactSizeIterator>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, keys.into_iter().map(|key| PyString::new(py, key.as_str())))
}

/// Sets the environment variables that the engine's libraries read when they are loaded. Nobody who has not asked for its
/// log gets a dozen lines of it for each store that is opened; its errors stay.
fn set_environment(py: Python<'_>, config: &MooncakeConfig) -> PyResult<()> {
    let environ = py.import("os")?.getattr("environ")?;
    environ.call_method1("setdefault", ("MC_LOG_LEVEL", "ERROR"))?;
    for (name, value) in &config.environment {
        environ.set_item(name, value)?;
    }
    Ok(())
}

fn settings<'py>(py: Python<'py>, config: &MooncakeConfig) -> PyResult<Bound<'py, PyDict>> {
    let settings = PyDict::new(py);
    settings.set_item("local_hostname", &config.local_hostname)?;
    settings.set_item("metadata_server", &config.metadata)?;
    settings.set_item("global_segment_size", config.segment_bytes)?;
    settings.set_item("local_buffer_size", config.buffer_bytes)?;
    settings.set_item("protocol", &config.protocol)?;
    settings.set_item("rdma_devices", &config.devices)?;
    settings.set_item("master_server_addr", &config.master)?;
    settings.set_item("tenant_id", &config.tenant)?;
    if let Some(path) = &config.ssd_path {
        settings.set_item("enable_ssd_offload", true)?;
        settings.set_item("ssd_offload_path", path)?;
    }
    if let Some(port) = config.client_http_port {
        settings.set_item("enable_client_http_server", true)?;
        settings.set_item("client_http_port", port)?;
    }
    Ok(settings)
}
