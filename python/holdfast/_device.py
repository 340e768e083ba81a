"""Tensors on a device: CUDA, and every other one that torch knows with streams and events.

An engine moves host memory. So the bytes of such a tensor pass through a stage: page-locked host memory of the store's,
where the device has such a thing. They are copied on a stream of Holdfast's own, chunk by chunk, while other chunks are
sent or arrive.

Order, for a call that gets a tensor while its caller's current stream is ``S``:

- What ``S`` was told before the call comes before the copies: they wait for an event on ``S``. What it is told after the
  call has returned comes after them: the call returns when they have ended.
- A call that fails or is given up may leave copies behind that end later. The tensor stays alive until then
  (``record_stream``, and a reference), and ``S`` waits for them before it does anything else with it.

Where: the put is in the module ``io/staged.rs`` and the get in ``io/read.rs`` of ``crates/features``; they call
:meth:`DeviceTensor.begin` and :meth:`Copy.wait` on threads of theirs.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast import _holdfast
from holdfast.errors import Unsupported

if TYPE_CHECKING:
    import torch

log: Final = logging.getLogger("holdfast")

_LONGEST_PAUSE_S: Final = 0.001


class Device:
    """A device of torch's: its module, and the streams that Holdfast copies on."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.torch = device
        self.module: Any = torch.get_device_module(device)
        # One for each direction, so that puts and gets do not wait for each other.
        self._streams = {to_device: self.module.Stream(device) for to_device in (False, True)}

    def stream(self, to_device: bool) -> Any:
        return self._streams[to_device]

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
    return device.type != "meta" and all(hasattr(torch.get_device_module(device), name) for name in needed)


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

    def __init__(self, tensor: torch.Tensor, what: str, *, queued_on: Any = None) -> None:
        import torch

        self.device = device_of(tensor.device, what)
        self._tensor = tensor
        self._bytes = tensor.detach().view(-1).view(torch.uint8)
        # What the caller had its device do before this call.
        self._before = self.device.module.Event()
        self._before.record(queued_on or self.device.module.current_stream(self.device.torch))

    def begin(self, to_device: bool, at: int, address: int, nbytes: int) -> Copy:
        """Queues a copy between the tensor's bytes from ``at`` on and host memory."""
        import torch

        host = torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)
        part = self._bytes[at : at + nbytes]
        stream = self.device.stream(to_device)
        done = self.device.module.Event()
        with self.device.module.stream(stream):
            stream.wait_event(self._before)
            if to_device:
                part.copy_(host, non_blocking=True)
            else:
                host.copy_(part, non_blocking=True)
            done.record(stream)
        # The tensor may be gone before the copy ends, if the call is given up.
        self._tensor.record_stream(stream)
        return Copy(done, (self._tensor, host))


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


def on_device(tensor: torch.Tensor, what: str) -> _holdfast.OnDevice:
    """A tensor on a device, for the compiled module."""
    return _holdfast.OnDevice(tensor.numel() * tensor.element_size(), DeviceTensor(tensor, what))


def caller_waits_for_copies(tensors: Sequence[object]) -> None:
    """After a call that failed: its copies may end later, and what the caller does with these tensors comes after them."""
    import torch

    for where in {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu"}:
        device = device_of(where, "")
        current = device.module.current_stream(device.torch)
        for to_device in (False, True):
            current.wait_stream(device.stream(to_device))


class Allocator:
    """Memory of a device for the tensors of one get. Called on a thread of the store's, once, when they are known."""

    def __init__(self, device: torch.device) -> None:
        self._device = device_of(device, "device")
        self.tensors: dict[str, torch.Tensor] = {}

    def __call__(self, specs: Sequence[_holdfast.Spec]) -> list[_holdfast.OnDevice | None]:
        """Allocates on the stream that copies: memory that was in use on another stream is not given out."""
        import torch

        made: list[_holdfast.OnDevice | None] = []
        stream = self._device.stream(True)
        with self._device.module.stream(stream):
            for name, dtype, shape, nbytes in specs:
                tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self._device.torch)
                self.tensors[name] = tensor
                one = DeviceTensor(tensor, name, queued_on=stream) if nbytes else None
                made.append(None if one is None else _holdfast.OnDevice(nbytes, one))
        return made

    def handed_out(self) -> dict[str, torch.Tensor]:
        """The tensors, whose bytes are all there. Used on the caller's stream from here on."""
        current = self._device.module.current_stream(self._device.torch)
        for tensor in self.tensors.values():
            tensor.record_stream(current)
        return self.tensors
