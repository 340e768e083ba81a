//! The wheel's store object as it is: arguments in, codes out.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use tensorhold_core::{SystemClock, poll_until};
use tensorhold_engine::testing::pattern;
use tensorhold_engine::{EngineId, HostMemory, Region, Registrar, Span};
use tensorhold_testkit::Cluster;

use crate::common::WITHIN;

pub const MIB: usize = 1 << 20;

/// The codes that matter here, by the engine's own names.
pub const NO_AVAILABLE_HANDLE: i64 = -200;
pub const INVALID_PARAMS: i64 = -600;
pub const REPLICA_IS_NOT_READY: i64 = -703;
pub const OBJECT_NOT_FOUND: i64 = -704;
pub const OBJECT_HAS_LEASE: i64 = -706;
pub const LEASE_EXPIRED: i64 = -707;
pub const TRANSFER_FAIL: i64 = -800;
pub const RPC_FAIL: i64 = -900;
pub const RPC_TIMEOUT: i64 = -901;

/// How an object is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Evictable,
    Pinned,
}

/// A client of the engine with nothing of Tensorhold around it.
#[derive(Clone, Debug)]
pub struct Bare(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Py<PyAny>,
    admin: Vec<String>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Whatever close says about a cluster that a test has broken, the test is over.
        Python::attach(|py| self.store.call_method0(py, "close").map(drop).ok());
    }
}

/// Makes the interpreter see the wheel.
fn prepare(py: Python<'_>) -> PyResult<()> {
    let venv = PathBuf::from(std::env::var_os("TENSORHOLD_VENV").expect("cargo sets TENSORHOLD_VENV"));
    let version = py.version_info();
    let packages = venv.join(format!("lib/python{}.{}/site-packages", version.major, version.minor));
    py.import("site")?.call_method1("addsitedir", (packages,)).map(drop)
}

pub fn wheel_version() -> String {
    Python::attach(|py| {
        prepare(py)?;
        py.import("importlib.metadata")?
            .call_method1("version", ("mooncake-transfer-engine-non-cuda",))?
            .extract()
    })
    .expect("the wheel is installed")
}

impl Bare {
    pub fn connect(cluster: &Cluster) -> Self {
        let endpoints = cluster.endpoints();
        let connect = |py: Python<'_>| {
            prepare(py)?;
            let environ = py.import("os")?.getattr("environ")?;
            environ.set_item("MC_LOG_LEVEL", "ERROR")?;
            for (name, value) in &endpoints.client_env {
                environ.set_item(name, value)?;
            }
            let store = py.import("mooncake.store")?.call_method0("MooncakeDistributedStore")?;
            let (metadata, master) = (&endpoints.metadata, &endpoints.master);
            let code: i64 = store
                .call_method1("setup", ("127.0.0.1", metadata, 0, 16 * MIB, "tcp", "", master))?
                .extract()?;
            assert_eq!(code, 0, "setup");
            Ok::<_, PyErr>(store.unbind())
        };
        let store = Python::attach(connect).expect("a client of the cluster");
        Self(Arc::new(Inner {
            store,
            admin: endpoints.admin,
        }))
    }

    /// Calls a method of the store, and nothing else.
    pub fn call<'py, T>(&self, method: &str, args: impl pyo3::call::PyCallArgs<'py>, py: Python<'py>) -> T
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let answer = self.0.store.bind(py).call_method1(method, args);
        let answer = answer.unwrap_or_else(|error| panic!("{method} raised {error}"));
        match answer.extract() {
            Ok(value) => value,
            Err(_) => panic!("{method} returned {answer:?}"),
        }
    }

    pub fn config<'py>(py: Python<'py>, keep: Keep, replicas: usize) -> Bound<'py, PyAny> {
        let config = py
            .import("mooncake.store")
            .and_then(|module| module.call_method0("ReplicateConfig"))
            .expect("a ReplicateConfig");
        config.setattr("with_hard_pin", keep == Keep::Pinned).expect("set");
        config.setattr("replica_num", replicas).expect("set");
        config
    }

    pub fn put(&self, key: &str, from: &Span, keep: Keep) -> i64 {
        self.put_len(key, from, from.len(), keep)
    }

    pub fn put_len(&self, key: &str, from: &Span, len: usize, keep: Keep) -> i64 {
        Python::attach(|py| {
            let config = Self::config(py, keep, 1);
            self.call("put_from", (key, from.address(), len, config), py)
        })
    }

    pub fn put_replicas(&self, key: &str, from: &Span, replicas: usize) -> i64 {
        Python::attach(|py| {
            let config = Self::config(py, Keep::Evictable, replicas);
            self.call("put_from", (key, from.address(), from.len(), config), py)
        })
    }

    pub fn get(&self, key: &str, into: &Span) -> i64 {
        Python::attach(|py| self.call("get_into", (key, into.address(), into.len()), py))
    }

    /// The one code of a get into several buffers.
    pub fn get_parts(&self, key: &str, parts: &[Span]) -> i64 {
        let addresses: Vec<_> = parts.iter().map(Span::address).collect();
        let sizes: Vec<_> = parts.iter().map(Span::len).collect();
        let codes: Vec<i64> = Python::attach(|py| {
            let args = ([key], [addresses], [sizes]);
            self.call("batch_get_into_multi_buffers", args, py)
        });
        codes[0]
    }

    pub fn is_exist(&self, key: &str) -> i64 {
        Python::attach(|py| self.call("is_exist", (key,), py))
    }

    pub fn batch_is_exist(&self, keys: &[&str]) -> Vec<i64> {
        Python::attach(|py| self.call("batch_is_exist", (keys.to_vec(),), py))
    }

    pub fn get_size(&self, key: &str) -> i64 {
        Python::attach(|py| self.call("get_size", (key,), py))
    }

    /// For how many keys there was a descriptor.
    pub fn replica_desc(&self, keys: &[&str]) -> usize {
        Python::attach(|py| {
            let found: Bound<'_, PyDict> = {
                let answer = self
                    .0
                    .store
                    .bind(py)
                    .call_method1("batch_get_replica_desc", (keys.to_vec(),));
                answer.expect("descriptors").cast_into().expect("a dict")
            };
            found.len()
        })
    }

    pub fn remove(&self, key: &str, force: bool) -> i64 {
        Python::attach(|py| self.call("remove", (key, force), py))
    }

    pub fn batch_remove(&self, keys: &[String], force: bool) -> Vec<i64> {
        Python::attach(|py| self.call("batch_remove", (keys.to_vec(), force), py))
    }

    pub fn register(&self, memory: &Region) -> i64 {
        Python::attach(|py| self.call("register_buffer", (memory.address(), memory.len()), py))
    }

    pub fn unregister(&self, memory: &Region) -> i64 {
        Python::attach(|py| self.call("unregister_buffer", (memory.address(),), py))
    }

    /// Registered memory, zeroed; it is unregistered when its last holder is gone.
    pub fn memory(&self, len: usize) -> Region {
        let memory = HostMemory::allocate(len).expect("memory");
        let region = Region::new(memory, Arc::new(Owner(Some(self.clone()))));
        assert_eq!(self.register(&region), 0, "fresh memory can be registered");
        region
    }

    /// Registered memory with a pattern.
    pub fn filled(&self, len: usize, seed: u64) -> Region {
        let region = self.memory(len);
        region.whole().write(0, &pattern(len, seed)).expect("fits");
        region
    }

    /// Runs `call` on a thread of its own.
    pub fn spawn<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let bare = self.clone();
        std::thread::spawn(move || call(&bare))
    }

    /// The master's answer to a probe of `key`, whatever its name is: the whole map of answers.
    pub fn probe_raw(&self, key: &str) -> Value {
        let key = utf8_percent_encode(key, NON_ALPHANUMERIC);
        let mut answer = ureq::get(format!("{}/batch_query_keys?keys={key}", self.0.admin[0]))
            .config()
            .timeout_global(Some(WITHIN))
            .build()
            .call()
            .expect("the admin port answers");
        let text = answer.body_mut().read_to_string().expect("a whole answer");
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        value["data"].take()
    }

    /// Where `key` is: the numbers of copies in DRAM and on SSD, or the master's word for what is wrong.
    pub fn probe(&self, key: &str) -> Result<(usize, usize), String> {
        let mut answer = self.probe_raw(key);
        let answer = answer[key].take();
        if answer["ok"] != true {
            return Err(answer["error"].as_str().unwrap_or_default().to_owned());
        }
        let copies = |list: &str| answer[list].as_array().map_or(0, Vec::len);
        Ok((copies("values"), copies("local_disk_values")))
    }
}

/// What a region comes back to: memory that a client knows is unregistered first.
#[derive(Debug)]
struct Owner(Option<Bare>);

impl Registrar for Owner {
    fn engine(&self) -> EngineId {
        EngineId::unique()
    }

    fn unregister(&self, memory: HostMemory) {
        if let Some(bare) = &self.0 {
            Python::attach(|py| bare.call::<i64>("unregister_buffer", (memory.address(),), py));
        }
    }
}

/// Memory that no client knows.
pub fn unregistered(len: usize) -> Region {
    Region::new(HostMemory::allocate(len).expect("memory"), Arc::new(Owner(None)))
}

/// Polls `ready` until it answers; a panic that says `what` if it does not in time.
pub fn soon<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    within(WITHIN, what, ready)
}

pub fn within<T>(time: Duration, what: &str, ready: impl FnMut() -> Option<T>) -> T {
    poll_until(&SystemClock::new(), time, Duration::from_millis(20), ready)
        .unwrap_or_else(|| panic!("not within {time:?}: {what}"))
}
