"""Output tensors: the memory in which the bytes arrived, seen through the array library that the caller uses."""

from __future__ import annotations

import ctypes
import importlib
from typing import TYPE_CHECKING, Any

from tensorhold import _dtypes, _tensorhold
from tensorhold.errors import Unsupported

if TYPE_CHECKING:
    import numpy
    import torch

__all__ = ["Tensor"]

_CPU = (1, 0)


class Tensor:
    """A tensor in a store's memory: what a get returns, and what :meth:`FeatureStore.empty` returns to be filled.

    It is seen without a copy as a torch tensor, a numpy array, a memoryview, or through DLPack. Its memory returns to
    the store's pool when the last of these views is gone.

    While an engine call may still write to it, it cannot be viewed and raises :class:`~tensorhold.errors.Unavailable`.
    That is the case while a ``get`` into it is in flight, or when a ``get`` has ended at its deadline but its transfer
    has not. A view that was taken before shows whatever such a call writes.
    """

    __slots__ = ("__weakref__", "dtype", "memory", "name", "nbytes", "shape")

    name: str
    """Its name in the sample; empty for a buffer."""
    dtype: str
    """The element type, by torch's name: ``bfloat16``."""
    shape: tuple[int, ...]
    nbytes: int
    memory: _tensorhold.Memory | None
    """Its memory; None if it has no bytes."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], nbytes: int, memory: _tensorhold.Memory | None) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.nbytes = nbytes
        self.memory = memory

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype}{list(self.shape)})"

    @property
    def address(self) -> int:
        """The address of its first byte; 0 if it has none."""
        return self.memory.address if self.memory else 0

    def tobytes(self) -> bytes:
        """A copy of its bytes."""
        return self.memory.tobytes() if self.memory else b""

    def memoryview(self) -> memoryview:
        """Its bytes, flat and writable."""
        if self.memory is None:
            return memoryview(bytearray())
        self.memory.check_settled()
        array: Any = (ctypes.c_ubyte * self.nbytes).from_address(self.memory.address)
        array.tensorhold_memory = self.memory  # the view holds the array, the array holds the memory
        return memoryview(array).cast("B")

    def torch(self) -> torch.Tensor:
        """A view as a torch tensor."""
        import torch

        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise Unsupported(
                "this release of torch does not have the element type; use .memoryview()",
                operation="python.tensor",
                facts={"dtype": self.dtype, "torch": torch.__version__},
            )
        if self.memory is None:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self.memoryview(), dtype=torch.uint8).view(dtype).reshape(self.shape)

    def numpy(self, *, raw: bool = False) -> numpy.ndarray[Any, Any]:
        """A view as a numpy array.

        numpy has neither bfloat16 nor 8-bit floats. If the package ``ml_dtypes`` is installed, they come as its types;
        with ``raw=True`` they come as unsigned integers of the same width; otherwise this raises :class:`Unsupported`.
        """
        import numpy

        return numpy.frombuffer(self.memoryview(), dtype=self._numpy_dtype(raw)).reshape(self.shape)

    def _numpy_dtype(self, raw: bool) -> Any:
        if _dtypes.is_numpys(self.dtype):
            return self.dtype
        width = _tensorhold.spec_bytes(self.dtype, (1,))
        if raw and width in (1, 2, 4, 8):
            return f"uint{8 * width}"
        name = _dtypes.ml_dtypes_name(self.dtype)
        if name is not None:
            try:
                return getattr(importlib.import_module("ml_dtypes"), name)
            except (ImportError, AttributeError):
                pass  # not installed, or too old: reported below
        raise Unsupported(
            "numpy does not have this element type; install ml_dtypes, pass raw=True for integers, or use .torch()",
            operation="python.tensor",
            facts={"dtype": self.dtype},
        )

    @property
    def __array_interface__(self) -> dict[str, Any]:
        typestr = _dtypes.typestr(self.dtype)
        if typestr is None:
            raise AttributeError(f"numpy does not have the element type {self.dtype}; see Tensor.numpy")
        return {"version": 3, "typestr": typestr, "shape": self.shape, "data": self.memoryview()}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        known = _dtypes.dlpack(self.dtype)
        if known is None:
            raise BufferError(f"DLPack does not have the element type {self.dtype}; use .torch() or .memoryview()")
        if (dl_device is not None and tuple(dl_device) != _CPU) or copy:
            raise BufferError("a Tensor is exported where it lies, in host memory; copy it to the device afterwards")
        if self.memory is None:
            raise BufferError("a tensor without bytes cannot be exported; use .torch() or .numpy()")
        versioned = max_version is not None and tuple(max_version) >= (1, 0)
        return self.memory.dlpack(*known, self.shape, versioned)
