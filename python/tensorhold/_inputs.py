"""Takes input tensors apart: their type and shape, and where their bytes lie. Nothing is copied.

**Bytes that are put.** Until the engine has finished with them, their owner is kept alive. That need not be the object that
was passed: a torch tensor can be given another storage (``t.data = ...``, ``t.set_(...)``), and the old one would be freed
while the engine uses it.

| passed | kept alive | the bytes stay in place unless |
|---|---|---|
| torch tensor on a device | the tensor, until its copies have ended (module ``_device``) | as below |
| torch tensor | its storage | the storage's memory is exchanged: ``share_memory_()``, ``untyped_storage().resize_`` |
| numpy array | a view of it, which holds the owner of the bytes | ``resize(..., refcheck=False)`` is called on the owner |
| ``__dlpack__`` | the object in the capsule | its producer breaks DLPack's rule |
| buffer (bytearray, memoryview, ``array``, mmap) | the exported buffer | never: its owner refuses to move or free it |

``torch.multiprocessing`` calls ``share_memory_()`` for what it sends. If the bytes do not stay, a put that is in flight sends other bytes, as if the tensor had been written to. One that has failed
may still be read by the engine; what it reads is not committed.

**Bytes that arrive** in memory that is not a store's never do so directly: a transfer that outlives its call would write
into memory that has become another's by one of these ways. They arrive in the pool, and :func:`fill` copies them.

Neither torch nor numpy is imported here: a program that passes their tensors has imported them itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

from tensorhold import _dtypes, _tensorhold
from tensorhold._tensor import Tensor
from tensorhold.errors import Invalid, Unsupported

if TYPE_CHECKING:
    import numpy
    import torch

    TensorLike = Union["torch.Tensor", "numpy.ndarray[Any, Any]", Tensor, "SupportsDlpack", bytes, bytearray, memoryview]
"""A tensor that can be put or read into: a torch tensor, on the CPU or on a device, a numpy array, a :class:`Tensor`, any object with
``__dlpack__`` in host memory, or any object with the buffer protocol. It must be contiguous in each case."""


class SupportsDlpack(Protocol):
    """An array that can be exported through DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class Input(NamedTuple):
    """A tensor, taken apart."""

    dtype: str
    shape: Sequence[int]
    source: _tensorhold.Memory | _tensorhold.OnDevice | tuple[int, int, object] | None
    """Its memory: memory of a store, memory of a device, or address, length and owner; None if it has no bytes."""
    writable: bool


def describe_tensor(tensor: object, what: str) -> Input:
    """Determines what a tensor is and where its bytes lie. ``what`` names it in error messages."""
    if isinstance(tensor, Tensor):
        return Input(tensor.dtype, tensor.shape, tensor.memory, True)
    torch_module = sys.modules.get("torch")
    if torch_module is not None and isinstance(tensor, torch_module.Tensor):
        return _of_torch(tensor, what)
    interface = getattr(tensor, "__array_interface__", None)
    if interface is not None:
        return _of_array(tensor, interface, what)
    if hasattr(tensor, "__dlpack__"):
        return _of_dlpack(tensor, what)
    return _of_buffer(tensor, what)


def fill(tensor: object, memory: _tensorhold.Memory, what: str) -> None:
    """Copies bytes that have arrived, on the thread of the caller that waited for them. The place is asked for anew: the
    tensor may have been given another storage while they were under way."""
    source = describe_tensor(tensor, what).source
    if not isinstance(source, tuple) or source[1] != memory.nbytes:
        raise _refusal("the memory to get into became another while the get was in flight", what)
    address, nbytes, _owner = source
    ctypes.memmove(address, memory.address, nbytes)


def _refusal(why: str, what: str) -> Invalid:
    return Invalid(why, operation="python.tensor", facts={"tensor": what})


def without_bytes(tensor: torch.Tensor, what: str) -> Unsupported:
    """Why a tensor that only stands for others is refused: what it calls its memory is not its elements."""
    return Unsupported(
        "this tensor has no bytes of its own; pass the one that has them: of a DTensor .to_local() or .full_tensor(), of a "
        "quantised one its parts or .dequantize(), of a zero tensor of autograd torch.zeros_like(...)",
        operation="python.tensor",
        facts={"tensor": what, "type": type(tensor).__name__},
    )


def address_of(tensor: torch.Tensor, what: str) -> int:
    """Where the bytes of a tensor in host memory lie. Raises for a tensor that wraps others, or whose elements are computed."""
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # of torch.func, inside of vmap and grad
        raise without_bytes(tensor, what) from error
    if not address:
        raise without_bytes(tensor, what)
    return address


def _of_torch(tensor: torch.Tensor, what: str) -> Input:
    if str(tensor.layout) != "torch.strided":
        raise _refusal("a sparse tensor has no bytes of its own; call .to_dense() first", what)
    if not tensor.is_contiguous():
        raise _refusal("this tensor is not contiguous; call .contiguous() first", what)
    if tensor.is_conj() or tensor.is_neg():
        raise _refusal("this tensor is a lazy conjugate or negation; call .resolve_conj().resolve_neg() first", what)
    nbytes = tensor.numel() * tensor.element_size()
    source: _tensorhold.OnDevice | tuple[int, int, object] | None = None
    if nbytes and tensor.device.type != "cpu":
        from tensorhold._device import on_device

        source = on_device(tensor, what)
    elif nbytes:
        source = (address_of(tensor, what), nbytes, tensor.untyped_storage())
    return Input(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), source, True)


def _of_array(array: object, interface: dict[str, Any], what: str) -> Input:
    dtype = _dtypes.of_array(interface["typestr"], getattr(getattr(array, "dtype", None), "name", None))
    shape: tuple[int, ...] = interface["shape"]
    nbytes = _tensorhold.spec_bytes(dtype, shape)
    if nbytes and interface.get("strides") is not None and not _is_dense(shape, interface["strides"], interface["typestr"]):
        raise _refusal("this array is not contiguous; call numpy.ascontiguousarray first", what)
    if not isinstance(interface.get("data"), tuple):
        raise _refusal("this object does not say where its bytes lie; call numpy.asarray first", what)
    address, read_only = interface["data"]
    return Input(dtype, shape, (address, nbytes, owner_of_array(array)) if nbytes else None, not read_only)


def owner_of_array(array: object) -> object:
    """The object that keeps the bytes of an array in place: a view for a numpy array, otherwise the object itself."""
    numpy_module = sys.modules.get("numpy")
    if numpy_module is not None and isinstance(array, numpy_module.ndarray):
        return array.view()
    return array


def _is_dense(shape: Sequence[int], strides: Sequence[int], typestr: str) -> bool:
    expected = int(typestr[2:])
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _of_dlpack(array: Any, what: str) -> Input:
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:  # before DLPack had versions: https://data-apis.org/array-api/latest/API_specification
        capsule = array.__dlpack__()
    except (BufferError, RuntimeError) as error:  # the protocol's error, and what some libraries raise
        raise Unsupported(
            f"this array cannot be exported through DLPack; copy it to host memory first: {error}",
            operation="python.tensor",
            facts={"tensor": what},
        ) from error
    taken = _tensorhold.import_dlpack(capsule)
    dtype = _dtypes.of_dlpack(taken.code, taken.bits)
    nbytes = _tensorhold.spec_bytes(dtype, taken.shape)
    return Input(dtype, taken.shape, (taken.address, nbytes, taken) if nbytes else None, not taken.read_only)


class _PyBuffer(ctypes.Structure):
    """CPython's ``Py_buffer``."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_SIMPLE = 0
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class _Exported:
    """Holds a buffer: its exporter may neither move nor free it meanwhile."""

    def __init__(self, exporter: memoryview) -> None:
        self._view = _PyBuffer()
        _get_buffer(exporter, ctypes.byref(self._view), _SIMPLE)
        self.address: int = self._view.buf or 0

    def __del__(self, release: Any = _release_buffer, byref: Any = ctypes.byref) -> None:
        if self._view.len or self._view.buf:
            release(byref(self._view))


def _of_buffer(exporter: Any, what: str) -> Input:
    try:
        view = memoryview(exporter)
    except TypeError:
        raise _refusal(
            f"a {type(exporter).__name__} is no tensor: pass a torch tensor, a numpy array, something with __dlpack__ "
            "or a bytes-like object",
            what,
        ) from None
    if not view.c_contiguous:
        raise _refusal("this buffer is not contiguous; pass bytes(buffer)", what)
    dtype, shape = _dtypes.of_format(view.format, view.itemsize), tuple(view.shape or ())
    if not view.nbytes:
        return Input(dtype, shape, None, not view.readonly)
    held = _Exported(view)
    return Input(dtype, shape, (held.address, view.nbytes, (held, view)), not view.readonly)
