"""Samples of a group one after the other, with the bytes of the next ones under way.

```text
started ──▶ under way: waits for a sample, takes it, gets its tensors ──▶ here ──next──▶ the caller's
                │ the stream is closed or dropped                          │ the same
                ▼                                                          ▼
              cancelled: a sample that was taken goes back as if it had never been
```

A sample is under lease from when it is taken, so ``ahead`` samples must be used within the time of a lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tensorhold.errors import TensorholdError, Invalid

if TYPE_CHECKING:
    from tensorhold._calls import Pending

L = TypeVar("L")
Taken = list[tuple[L, "dict[str, Any] | TensorholdError"]]
"""A sample and its tensors, or why it has none; empty if no sample came in time."""


class _Ahead(Generic[L]):
    """The calls under way, the oldest first."""

    def __init__(self, begin: Callable[[], Pending[Taken[L]]], ahead: int) -> None:
        if ahead < 1:
            raise Invalid("at least one sample is read ahead", operation="python.stream", facts={"prefetch": str(ahead)})
        self._begin = begin
        self._count = ahead
        self._calls: deque[Pending[Taken[L]]] = deque()
        self._closed = False

    def _fill(self) -> None:
        """Starts calls: one for now, and those ahead."""
        while not self._closed and len(self._calls) <= self._count:
            self._calls.append(self._begin())

    def _end(self) -> None:
        """Cancels the calls under way: dropping one does."""
        self._closed = True
        self._calls.clear()


class Stream(_Ahead[L]):
    """Samples of a group, each with its tensors: an iterator, and a context manager that closes it."""

    def __iter__(self) -> Stream[L]:
        return self

    def __next__(self) -> tuple[L, dict[str, Any]]:
        self._fill()
        while self._calls:
            taken = self._calls.popleft().wait()
            if taken:
                return _only(taken)
        # Those calls may have ended while the caller was busy, so one more waits from now on.
        taken = [] if self._closed else self._begin().wait()
        if taken:
            return _only(taken)
        self._end()
        raise StopIteration

    def close(self) -> None:
        """Gives back the samples that were taken and not used. Idempotent."""
        self._end()

    def __enter__(self) -> Stream[L]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


class AsyncStream(_Ahead[L]):
    """Samples of a group, each with its tensors: an asynchronous iterator, and a context manager that closes it."""

    def __aiter__(self) -> AsyncStream[L]:
        return self

    async def __anext__(self) -> tuple[L, dict[str, Any]]:
        self._fill()
        while self._calls:
            taken = await self._calls.popleft()
            if taken:
                return _only(taken)
        # Those calls may have ended while the caller was busy, so one more waits from now on.
        taken = [] if self._closed else await self._begin()
        if taken:
            return _only(taken)
        self._end()
        raise StopAsyncIteration

    def close(self) -> None:
        """Gives back the samples that were taken and not used. Idempotent."""
        self._end()

    async def __aenter__(self) -> AsyncStream[L]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


def _only(taken: Taken[L]) -> tuple[L, dict[str, Any]]:
    lease, tensors = taken.pop()
    if isinstance(tensors, TensorholdError):
        del lease  # the traceback would keep it; dropped, the sample goes back
        raise tensors
    return lease, tensors
