"""Tensors on a device: CUDA, and every other one that torch knows with streams and events.

An engine moves host memory. So the bytes of such a tensor pass through a stage: page-locked host memory of the store's,
where the device has such a thing. They are copied on streams of Tensorhold's own, chunk by chunk, while other chunks are
sent or arrive.

Order, for a call that gets a tensor while its caller's current stream is ``S``:

- What ``S`` was told before the call comes before the copies: they wait for an event on ``S``. What it is told after the
  call has returned comes after them: the call returns when they have ended.
- A call that fails or is given up may leave copies behind that end later. The tensor stays alive until then
  (``record_stream``, and a reference). After a get that failed ``S`` waits for what is queued, and another call of Tensorhold's
  with the same memory waits until the first has ended, even if its caller has left.

Where: the put is in the module ``io/staged.rs`` and the get in ``io/read.rs`` of ``crates/features``; they call
:meth:`DeviceTensor.begin` and :meth:`Copy.wait` on threads of theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tensorhold import _tensorhold
from tensorhold._inputs import without_bytes
from tensorhold.errors import Unsupported

if TYPE_CHECKING:
    import torch

log: Final = logging.getLogger("tensorhold")

_LONGEST_PAUSE_S: Final = 0.001


class Device:
    """A device of torch's, and its module."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.torch = device
        self.module: Any = torch.get_device_module(device)

    def stream(self) -> Any:
        """A stream for the copies of one tensor, or of one get. torch has a few of them and hands them out in turn; copies of
        different calls must not wait for each other's callers."""
        return self.module.Stream(self.torch)

    def current_stream(self) -> Any:
        return self.module.current_stream(self.torch)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Makes this the current stream. The thread is one of the store's and has no device of its own: without the first
        context the second would leave it on device 0, and have a context made there."""
        with self.module.device(self.torch.index) if hasattr(self.module, "device") else contextlib.nullcontext():
            with self.module.stream(stream):
                yield

    def stage(self, nbytes: int) -> tuple[int, object]:
        """Host memory for stages: its address and its owner."""
        import torch

        try:
            memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except (RuntimeError, NotImplementedError) as error:
            log.info("stages for %s are not page-locked, so copies are slower: %s", self.torch, str(error).splitlines()[0])
            memory = torch.empty(nbytes, dtype=torch.uint8)
        return memory.data_ptr(), memory


_lock = threading.Lock()
_devices: dict[tuple[int, torch.device], Device] = {}


def has_streams(device: torch.device) -> bool:
    """Whether torch has streams and events for this device. Not for Apple's, for example."""
    import torch

    needed = ("Stream", "Event", "current_stream", "current_device", "stream")
    try:
        module = torch.get_device_module(device)
    except RuntimeError:  # it has no module at all
        return False
    return device.type != "meta" and all(hasattr(module, name) for name in needed)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as it can be put: contiguous, without lazy operations, and on the CPU if its device has no streams. Nothing
    is copied if it already is."""
    here = tensor if tensor.device.type == "cpu" or has_streams(tensor.device) else tensor.cpu()
    return here.detach().resolve_conj().resolve_neg().contiguous()


def device_of(device: torch.device, what: str) -> Device:
    """The device, in this process. Raises if torch has no streams for it."""
    import torch

    if not has_streams(device):
        raise Unsupported(
            "torch has no streams for this device, so its memory cannot be copied beside other work; call .cpu() first",
            operation="python.tensor",
            facts={"tensor": what, "device": str(device)},
        )
    if device.index is None:
        device = torch.device(device.type, torch.get_device_module(device).current_device())
    key = (os.getpid(), device)
    with _lock:
        known = _devices.get(key)
        if known is None:
            known = _devices[key] = Device(device)
    return known


class DeviceTensor:
    """A contiguous tensor on a device, in a call that was made just now."""

    def __init__(self, tensor: torch.Tensor, what: str, *, stream: Any = None) -> None:
        """``stream``: it was allocated on this one, which copies. Otherwise the caller has used it on its current stream."""
        import torch

        self.device = device_of(tensor.device, what)
        self._tensor = tensor
        with torch.inference_mode(tensor.is_inference()):
            self._bytes = tensor.detach().view(-1).view(torch.uint8)
        self._stream = stream or self.device.stream()
        if stream is None:
            # What the caller had its device do before this call.
            before = self.device.module.Event()
            before.record(self.device.current_stream())
            self._stream.wait_event(before)

    @property
    def native(self) -> _tensorhold.OnDevice:
        return _tensorhold.OnDevice(self._tensor.data_ptr(), self._bytes.numel(), self)

    def begin(self, to_device: bool, at: int, address: int, nbytes: int) -> Copy:
        """Queues a copy between the tensor's bytes from ``at`` on and host memory."""
        import torch

        host = torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)
        done = self.device.module.Event()
        # The tensor may be gone before the copy ends, if the call is given up.
        self._tensor.record_stream(self._stream)
        # A tensor that was made in inference mode can be written there only.
        with torch.inference_mode(self._tensor.is_inference()), self.device.on(self._stream):
            part = self._bytes[at : at + nbytes]
            if to_device:
                part.copy_(host, non_blocking=True)
            else:
                host.copy_(part, non_blocking=True)
            try:
                done.record(self._stream)
            except Exception as error:  # the copy is queued, and nobody can say when it ends
                return Copy(_Unknown(error), (self._tensor, host))
        return Copy(done, (self._tensor, host))

    def caller_waits(self) -> None:
        """What the caller's current stream does next comes after the copies that are queued."""
        self.device.current_stream().wait_stream(self._stream)


class _Unknown:
    """Takes the place of an event that could not be recorded."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def query(self) -> bool:
        raise self._error


class Copy:
    """A copy that has been queued."""

    def __init__(self, done: Any, memory: object) -> None:
        self._done = done
        self._memory = memory

    def wait(self, within: float) -> bool:
        """Whether it has ended within this time. Raises what the device raises."""
        # Events have no wait with a deadline.
        give_up, pause = time.monotonic() + within, 2e-5
        while not self._done.query():
            left = give_up - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return True


def on_device(tensor: torch.Tensor, what: str) -> _tensorhold.OnDevice:
    """A tensor on a device, for the compiled module."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor):
        raise without_bytes(tensor, what)
    return DeviceTensor(tensor, what).native


def callers_wait(given: Iterable[_tensorhold.Given]) -> None:
    """After a get that failed: its copies may end later, and what the caller does with the tensors comes after them."""
    for _, _, _, source in given:
        if isinstance(source, _tensorhold.OnDevice):
            tensor: DeviceTensor = source.tensor
            try:
                tensor.caller_waits()
            except Exception as error:  # a lost device: the get's own error is the one to report
                log.debug("a stream does not wait for a failed get: %s", error)


class Allocator:
    """Memory of a device for the tensors of one get. Called on a thread of the store's, once, when they are known."""

    def __init__(self, device: torch.device) -> None:
        self._device = device_of(device, "device")
        self.tensors: dict[str, torch.Tensor] = {}

    def __call__(self, specs: Sequence[_tensorhold.Spec]) -> list[_tensorhold.OnDevice | None]:
        """Allocates on the stream that copies: memory that was in use on another stream is not given out."""
        import torch

        made: list[_tensorhold.OnDevice | None] = []
        stream = self._device.stream()
        with self._device.on(stream):
            for name, dtype, shape, nbytes in specs:
                tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self._device.torch)
                self.tensors[name] = tensor
                made.append(DeviceTensor(tensor, name, stream=stream).native if nbytes else None)
        return made

    def handed_out(self) -> dict[str, torch.Tensor]:
        """The tensors, whose bytes are all there. Used on the caller's stream from here on."""
        current = self._device.current_stream()
        for tensor in self.tensors.values():
            tensor.record_stream(current)
        return self.tensors
