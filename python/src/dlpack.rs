//! DLPack: the protocol that passes arrays between libraries by pointer. <https://dmlc.github.io/dlpack/latest/>
//!
//! A capsule holds a C structure with a deleter. The consumer renames the capsule (`used_…`) and calls the deleter when
//! it is done; a capsule that was never consumed calls the deleter itself. Two layouts exist, with and without a
//! version; the name of the capsule says which.
//!
//! An exported capsule keeps the exporting object alive and drops it in the deleter, which may be called on any thread.
//! An imported array is checked (host memory, contiguous, one lane) and held by [`Imported`] until the engine has
//! finished with it.

#![expect(
    unsafe_code,
    reason = "the FFI edge: C structures in capsules; each block says why it holds"
)]

use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use tensorhold_core::Error;
use tensorhold_engine_mooncake::interpreter;

use crate::errors::exception;

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const CPU: i32 = 1;
const PINNED: i32 = 3;
const READ_ONLY: u64 = 1;

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// The values that an exported structure keeps alive: its arrays, and the object that owns the memory.
struct Context {
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    owner: Option<Py<PyAny>>,
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut owner = self.owner.take();
        if interpreter::attach(|_| drop(owner.take())).is_none() {
            std::mem::forget(owner);
        }
    }
}

/// A capsule over `address`, which `owner` keeps valid.
pub(crate) fn export(
    py: Python<'_>,
    owner: Py<PyAny>,
    address: usize,
    code: u8,
    bits: u8,
    mut shape: Vec<i64>,
    versioned: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let mut strides = vec![1_i64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    let ndim = i32::try_from(shape.len()).map_err(|_| PyTypeError::new_err("too many dimensions"))?;
    let tensor = DlTensor {
        data: ptr::with_exposed_provenance_mut(address),
        device: Device { kind: CPU, id: 0 },
        ndim,
        dtype: DataType { code, bits, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    // The arrays' heap memory stays where it is when the vectors move.
    let context = Box::into_raw(Box::new(Context {
        _shape: shape,
        _strides: strides,
        owner: Some(owner),
    }))
    .cast::<c_void>();
    let (pointer, name, end): (*mut c_void, _, ffi::PyCapsule_Destructor) = if versioned {
        let managed = ManagedVersioned {
            major: 1,
            minor: 0,
            context,
            deleter: Some(delete_versioned),
            flags: 0,
            tensor,
        };
        (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED, end_versioned)
    } else {
        let managed = Managed {
            tensor,
            context,
            deleter: Some(delete),
        };
        (Box::into_raw(Box::new(managed)).cast(), NAME, end_unversioned)
    };
    // SAFETY: the pointer is not null and of the kind that the name says; the name is static.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end)) };
    // SAFETY: PyCapsule_New returned a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// SAFETY (of the caller): `managed` came from `export`, and no other code uses it any more.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `export` made it from a Box, and DLPack calls the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `export` made the context the same way.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

/// SAFETY (of the caller): as for `delete`.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: `export` made it from a Box, and DLPack calls the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `export` made the context the same way.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

/// The destructor of a capsule that was never consumed. SAFETY (of the caller): CPython calls it with the capsule.
unsafe extern "C" fn end_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is valid while its destructor runs.
    if unsafe { ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) } == 1 {
        // SAFETY: it has this name, so it still holds what `export` put in, and no consumer has taken it.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) };
        // SAFETY: as above; no consumer uses it.
        unsafe { delete(managed.cast()) };
    }
}

/// As `end_unversioned`, for the other layout.
unsafe extern "C" fn end_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is valid while its destructor runs.
    if unsafe { ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) } == 1 {
        // SAFETY: it has this name, so it still holds what `export` put in, and no consumer has taken it.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()) };
        // SAFETY: as above; no consumer uses it.
        unsafe { delete_versioned(managed.cast()) };
    }
}

/// A structure that was taken out of a capsule; its deleter is called when this is dropped.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Imported {
    held: Held,
    /// The code of the element type in DLPack.
    #[pyo3(get)]
    code: u8,
    /// Bits of one element.
    #[pyo3(get)]
    bits: u8,
    /// The shape.
    #[pyo3(get)]
    shape: Vec<i64>,
    /// The address of its first byte.
    #[pyo3(get)]
    address: usize,
    /// Whether the bytes must not be written.
    #[pyo3(get)]
    read_only: bool,
}

enum Held {
    Plain(*mut Managed),
    Versioned(*mut ManagedVersioned),
}

// SAFETY: a structure that was handed over belongs to its consumer; DLPack lets any thread call its deleter.
unsafe impl Send for Held {}
// SAFETY: shared references to it are never dereferenced.
unsafe impl Sync for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        match *self {
            Self::Plain(managed) => {
                // SAFETY: it was taken out of its capsule, so it is ours until its deleter is called, here only.
                if let Some(deleter) = unsafe { (*managed).deleter } {
                    // SAFETY: as above.
                    unsafe { deleter(managed) };
                }
            }
            Self::Versioned(managed) => {
                // SAFETY: it was taken out of its capsule, so it is ours until its deleter is called, here only.
                if let Some(deleter) = unsafe { (*managed).deleter } {
                    // SAFETY: as above.
                    unsafe { deleter(managed) };
                }
            }
        }
    }
}

/// Takes the array out of a DLPack capsule.
#[pyfunction]
pub(crate) fn import_dlpack(capsule: &Bound<'_, PyAny>) -> PyResult<Imported> {
    let py = capsule.py();
    let raw = capsule.as_ptr();
    let (pointer, versioned) = if is_named(raw, NAME) {
        (take(py, raw, NAME, USED)?, false)
    } else if is_named(raw, NAME_VERSIONED) {
        (take(py, raw, NAME_VERSIONED, USED_VERSIONED)?, true)
    } else {
        return Err(PyTypeError::new_err(
            "this is not a DLPack capsule, or it was consumed already",
        ));
    };
    let refuse = |why: &'static str| exception(py, &Error::invalid("python.dlpack", why), false);
    let (held, tensor, read_only) = if versioned {
        let managed = pointer.cast::<ManagedVersioned>();
        let held = Held::Versioned(managed);
        // SAFETY: the capsule's name says that it is this structure, whose first fields no version changes.
        if unsafe { (*managed).major } != 1 {
            return Err(refuse(
                "this array uses a later version of DLPack; pass a numpy array or a torch tensor",
            ));
        }
        // SAFETY: version 1 has the layout that is declared here.
        let flags = unsafe { (*managed).flags };
        // SAFETY: as above; it lives as long as `held`.
        (held, unsafe { &(*managed).tensor }, flags & READ_ONLY != 0)
    } else {
        let managed = pointer.cast::<Managed>();
        // SAFETY: the capsule's name says that it is this structure; it lives as long as `held`.
        (Held::Plain(managed), unsafe { &(*managed).tensor }, false)
    };
    if !matches!(tensor.device.kind, CPU | PINNED) {
        return Err(refuse("this array is not in host memory; move it to the CPU first"));
    }
    if tensor.dtype.lanes != 1 {
        return Err(refuse("arrays of vectors are not supported; view it as plain elements"));
    }
    let ndim = usize::try_from(tensor.ndim).map_err(|_| refuse("this array has a negative number of dimensions"))?;
    // SAFETY: DLPack: `shape` has `ndim` entries.
    let shape = unsafe { copied(tensor.shape, ndim) };
    if !tensor.strides.is_null() {
        // SAFETY: DLPack: `strides` has `ndim` entries if it is not null.
        let strides = unsafe { copied(tensor.strides, ndim) };
        if !is_dense(&shape, &strides) {
            return Err(refuse("this array is not contiguous; make a contiguous copy first"));
        }
    }
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| refuse("this array exceeds the address space"))?;
    let address = tensor.data.expose_provenance().wrapping_add(offset);
    let (code, bits) = (tensor.dtype.code, tensor.dtype.bits);
    Ok(Imported {
        held,
        code,
        bits,
        shape,
        address,
        read_only,
    })
}

fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1_i64;
    shape.iter().zip(strides).rev().all(|(len, stride)| {
        let fits = *len == 1 || *stride == expected;
        expected = expected.saturating_mul(*len);
        fits
    })
}

/// SAFETY (of the caller): `from` has `len` entries.
unsafe fn copied(from: *const i64, len: usize) -> Vec<i64> {
    if len == 0 || from.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from, len) }.to_vec()
}

fn is_named(object: *mut ffi::PyObject, name: &CStr) -> bool {
    // SAFETY: any object may be asked; the caller has a Bound of it, and so holds the interpreter's lock.
    unsafe { ffi::PyCapsule_IsValid(object, name.as_ptr()) == 1 }
}

fn take(
    py: Python<'_>,
    capsule: *mut ffi::PyObject,
    name: &'static CStr,
    used: &'static CStr,
) -> PyResult<*mut c_void> {
    // SAFETY: the capsule has this name, as was just checked.
    let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) };
    if pointer.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: it is a capsule; the name is static.
    if unsafe { ffi::PyCapsule_SetName(capsule, used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(pointer)
}

#[pymethods]
impl Imported {
    fn __repr__(&self) -> String {
        let layout = match self.held {
            Held::Plain(_) => "dltensor",
            Held::Versioned(_) => "dltensor_versioned",
        };
        format!("Imported({layout} at {:#x})", self.address)
    }
}
