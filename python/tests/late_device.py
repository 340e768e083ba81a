"""A device for tests, made of host memory: torch's PrivateUse1 backend with ops written in Python.

Each stream is a thread that carries out what was queued on it, in order and late: before each copy it waits as long as
the test says. Streams know nothing of each other, except through events. So a copy that is not ordered behind the work
that it depends on reads or writes the wrong bytes, and a tensor whose memory is used again too early shows it:

- memory of a tensor that is gone is filled with :data:`REUSED` at once, unless ``record_stream`` named a stream that still
  has work queued; then when that work is done. A copy that touches such memory is counted.
- :func:`log` has the times of all copies, by the device's own clock.

There is one such device in a process. It stands for a GPU: not for its speed, but for everything that can be late.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
import torch
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME: Final = "late"
REUSED: Final = 0xDD
STREAMS: Final = 32


class DeviceLost(RuntimeError):
    """What a lost device raises."""


@dataclass
class Copied:
    """A copy that was carried out."""

    to_device: bool
    begun: float
    ended: float
    nbytes: int


@dataclass
class _State:
    delay: Callable[[], float] = lambda: 0.0
    lost: bool = False
    copies: list[Copied] = field(default_factory=list)
    after_reuse: int = 0
    held: threading.Event = field(default_factory=threading.Event)


_state = _State()
_state.held.set()
_lock = threading.RLock()
_current = threading.local()


def set_delay(low: float, high: float, seed: int = 0) -> None:
    """Each piece of work takes between ``low`` and ``high`` seconds longer from now on."""
    chance = random.Random(seed)
    _state.delay = lambda: chance.uniform(low, high)


def hold(held: bool) -> None:
    """Lets no work begin, or goes on."""
    _state.held.clear() if held else _state.held.set()


def lose(lost: bool) -> None:
    """Every event raises from now on."""
    _state.lost = lost


def log() -> list[Copied]:
    """The copies since the last :func:`forget`."""
    with _lock:
        return list(_state.copies)


def forget() -> None:
    """Begins a new log."""
    with _lock:
        _state.copies.clear()


def touched_after_reuse() -> int:
    """How many copies touched memory of a tensor that was gone."""
    return _state.after_reuse


class _Block:
    """Memory of the device. It is not returned to the system, so a copy that comes too late harms no test but its own."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = numpy.zeros(nbytes, numpy.uint8)
        self.used_by: set[int] = set()
        self.reused = False

    def gone(self) -> None:
        """Its tensor is gone: it may be used again as soon as the recorded streams have done what is queued."""
        waiting = [_streams[number] for number in self.used_by]
        left = len(waiting)
        if not left:
            self._reuse()

        def one_less() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._reuse()

        for stream in waiting:
            stream.enqueue(one_less)

    def _reuse(self) -> None:
        self.reused = True
        self.bytes.fill(REUSED)


_streams: dict[int, Stream] = {}
_numbers = itertools.count()


class Stream(torch.Stream):
    """Work in order, on a thread of its own."""

    _queue: queue.SimpleQueue[Callable[[], None]]

    def __new__(cls, device: object = None, **_: object) -> Stream:
        with _lock:
            number = next(_numbers)
            if number >= STREAMS:  # as with CUDA: there is a pool of them, and they are handed out in turn
                return _streams[1 + number % (STREAMS - 1)]
            made = super().__new__(cls, stream_id=number, device_index=0, device_type=20)  # 20: PrivateUse1
            _streams[number] = made
        made._queue = queue.SimpleQueue()
        threading.Thread(target=made._run, name=f"late-stream-{number}", daemon=True).start()
        return made

    def __init__(self, device: object = None, **_: object) -> None:
        pass

    def enqueue(self, work: Callable[[], None]) -> None:
        self._queue.put(work)

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            _state.held.wait()
            work()

    def wait_event(self, event: Event) -> None:  # type: ignore[override]  # this device's
        after = event.current()

        def wait() -> None:
            after.wait()

        self.enqueue(wait)

    def wait_stream(self, other: Stream) -> None:  # type: ignore[override]  # this device's
        event = Event()
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        event = Event()
        event.record(self)
        event.synchronize()


class Event:
    """A mark in a stream's work."""

    def __init__(self, **_: object) -> None:
        self._passed = threading.Event()
        self._passed.set()  # as with CUDA: what was never recorded has happened

    def record(self, stream: Stream | None = None) -> None:
        passed = self._passed = threading.Event()
        (stream or current_stream()).enqueue(passed.set)

    def current(self) -> threading.Event:
        return self._passed

    def query(self) -> bool:
        if _state.lost:
            raise DeviceLost("the device is lost")
        return self._passed.is_set()

    def synchronize(self) -> None:
        assert self._passed.wait(60), "a stream did not get there"


def current_stream(device: object = None) -> Stream:
    return getattr(_current, "stream", _default)


class _Module(_DummyBackendModule):
    Stream, Event = Stream, Event
    current_stream = staticmethod(current_stream)

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        """Other tests of this process keep the state of all devices."""
        return torch.zeros(8, dtype=torch.uint8)

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        """It draws no numbers."""

    @staticmethod
    @contextlib.contextmanager
    def stream(stream: Any) -> Iterator[None]:
        before = current_stream()
        _current.stream = stream
        try:
            yield
        finally:
            _current.stream = before


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_default = Stream()

_memory: dict[int, tuple[_Block, int, int]] = {}
"""The block, the first and the last byte of each storage. torch makes new tensors of views as it likes, but keeps their storages."""


class LateTensor(torch.Tensor):
    """A tensor on the device."""

    @staticmethod
    def __new__(cls, size: Any, dtype: torch.dtype, block: _Block, begin: int, end: int) -> LateTensor:
        made: Any = torch._C._acc.create_empty_tensor(size, dtype)
        made.__class__ = LateTensor
        return made  # type: ignore[no-any-return]

    def __init__(self, size: Any, dtype: torch.dtype, block: _Block, begin: int, end: int) -> None:
        _memory[self.untyped_storage()._cdata] = (block, begin, end)


    def data_ptr(self) -> int:
        block, begin, _ = _where(self)
        return int(block.bytes.ctypes.data) + begin


def _where(tensor: torch.Tensor) -> tuple[_Block, int, int]:
    return _memory[tensor.untyped_storage()._cdata]


def _width(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


def _op(name: str) -> Callable[[Any], Any]:
    return torch.library.impl(f"aten::{name}", "PrivateUse1")


@_op("empty.memory_format")
def _empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None) -> Any:
    dtype = dtype or torch.get_default_dtype()
    nbytes = _width(dtype)
    for one in size:
        nbytes *= one
    block = _Block(nbytes)
    made = LateTensor(tuple(size), dtype, block, 0, nbytes)
    weakref.finalize(made, block.gone)
    return made


@_op("empty_strided")
def _empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    return _empty(size, dtype)


@_op("view.dtype")
def _view_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    size = list(tensor.shape)
    size[-1] = size[-1] * _width(tensor.dtype) // _width(dtype)
    return LateTensor(tuple(size), dtype, *_where(tensor))


@_op("view")
def _view(tensor: torch.Tensor, size: Any) -> Any:
    known = 1
    for one in size:
        known *= one if one != -1 else 1
    return LateTensor(tuple(tensor.numel() // known if one == -1 else one for one in size), tensor.dtype, *_where(tensor))


@_op("slice.Tensor")
def _slice(tensor: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    assert tensor.dim() == 1 and step == 1, "the test device slices flat tensors only"
    block, first, _ = _where(tensor)
    width, begin = _width(tensor.dtype), start or 0
    stop = min(tensor.shape[0] if end is None else end, tensor.shape[0])
    return LateTensor((stop - begin,), tensor.dtype, block, first + begin * width, first + stop * width)


@_op("detach")
def _detach(tensor: torch.Tensor) -> Any:
    return LateTensor(tuple(tensor.shape), tensor.dtype, *_where(tensor))


@_op("record_stream")
def _record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    _where(tensor)[0].used_by.add(stream.stream_id)


@_op("_copy_from")
def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    to_device = target.device.type == NAME
    block, begin, end = _where(target if to_device else source)
    host = source.contiguous() if to_device else target
    host_bytes = host.detach().view(-1).view(torch.uint8).numpy()  # holds no memory: what the caller lets go of is gone

    def copy() -> None:
        begun = time.monotonic()
        time.sleep(_state.delay())
        with _lock:
            _state.after_reuse += block.reused
            if to_device:
                block.bytes[begin:end] = host_bytes
            else:
                host_bytes[:] = block.bytes[begin:end]
            _state.copies.append(Copied(to_device, begun, time.monotonic(), end - begin))

    stream = current_stream()
    stream.enqueue(copy)
    if not non_blocking:
        stream.synchronize()
    return target


def synchronize() -> None:
    """Waits until all streams have done what is queued now."""
    for stream in list(_streams.values()):
        stream.synchronize()


def fill(tensor: torch.Tensor, value: int, *, late: bool = True) -> None:
    """A kernel: fills the tensor's bytes, on the current stream."""
    block, begin, end = _where(tensor)

    def run() -> None:
        time.sleep(_state.delay() if late else 0)
        with _lock:
            block.bytes[begin:end] = value

    current_stream().enqueue(run)


def content(tensor: torch.Tensor) -> bytes:
    """The tensor's bytes as they are now, without waiting for any stream."""
    block, begin, end = _where(tensor)
    with _lock:
        return block.bytes[begin:end].tobytes()
