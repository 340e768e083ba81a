"""The tier: carries out operations on its own threads. An event loop submits, polls and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, cast

from tensorhold import _tensorhold
from tensorhold.kv._pages import PageStore
from tensorhold.kv._plan import Completion, Failure, Namespace, Operation


class Part(NamedTuple):
    """One part of every page of the host pool, in registered memory: page ``p`` has it at ``address + p * stride``."""

    address: int
    stride: int
    nbytes: int


@dataclass(frozen=True)
class TimedOut:
    """Advice to go on without this operation. It keeps its pages until its completion comes."""

    operation: int


def _completion(plain: _tensorhold.PlainCompletion) -> Completion:
    operation, completed, failure = plain
    return Completion(operation, completed, cast(Failure | None, failure))


class Tier:
    """Carries out queries, prefetches and backups. Only :meth:`wait` and :meth:`close` block.

    Every accepted operation gets exactly one :class:`Completion`, and only when nothing touches its pages any more; a
    refused operation gets its completion as the return value of :meth:`submit`. The caller copies between host and
    device.
    """

    def __init__(
        self,
        store: PageStore,
        namespace: Namespace,
        *,
        host_pages: int,
        parts: Sequence[Part],
        prefetch_threads: int = 2,
        backup_threads: int = 1,
        most: int = 16_384,
    ) -> None:
        """``most`` bounds the open operations of each kind; further ones are refused."""
        self.native = _tensorhold.Tier(
            store.native, namespace.plain(), host_pages, list(parts), prefetch_threads, backup_threads, most
        )

    def submit(self, operation: Operation, *, timeout: float) -> Completion | None:
        """Submits an operation, to be done within ``timeout`` seconds. Returns its completion if it was refused,
        otherwise None."""
        _, refused = self.native.submit(operation, timeout)
        return None if refused is None else _completion(refused)

    def cancel(self, operation: int) -> Literal["not-begun", "cancelling", "nothing"]:
        """Asks to end an operation early. Its completion still comes."""
        return cast(Literal["not-begun", "cancelling", "nothing"], self.native.cancel(operation))

    def poll(self) -> list[Completion | TimedOut]:
        """The completions and advice since the last call."""
        return _events(self.native.poll())

    def wait(self, timeout: float) -> list[Completion | TimedOut]:
        """Like :meth:`poll`, but waits until there is something to return. Other threads run meanwhile."""
        return _events(self.native.wait(timeout))

    def stats(self) -> dict[str, int]:
        """The tier's counters, and the number of open operations."""
        return self.native.stats()

    def close(self, timeout: float = 10.0) -> int:
        """Accepts nothing more and waits for its threads. Returns how many are still in a call that does not return."""
        return self.native.close(timeout)

    def __enter__(self) -> Tier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _events(events: list[tuple[_tensorhold.PlainCompletion | None, int | None]]) -> list[Completion | TimedOut]:
    told: list[Completion | TimedOut] = []
    for done, late in events:
        if done is not None:
            told.append(_completion(done))
        elif late is not None:
            told.append(TimedOut(late))
    return told
