"""The calls of a store, started but not awaited. Both faces of the package, blocking and asyncio, are built on
these."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tensorhold import _convert as to
from tensorhold import _dtypes, _tensorhold
from tensorhold._convert import View
from tensorhold._device import callers_wait
from tensorhold._prefetch import Prefetch, Tier
from tensorhold._stream import Taken
from tensorhold._tensor import Tensor
from tensorhold._values import AdoptedTensor, Answered, DeadLetter, Found, LiveSession, PutItem, Quarantined, SampleRef, Swept
from tensorhold.errors import TensorholdError, Invalid

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
L = TypeVar("L")
F = TypeVar("F")


class Pending(Generic[T]):
    """A call in flight. A caller that leaves (Ctrl-C, a cancelled task, a timeout, the last reference is dropped)
    cancels it: waits end, uncommitted work is undone, and leases are returned as if never taken."""

    __slots__ = ("_failed", "_finish", "_operation")

    def __init__(
        self,
        operation: _tensorhold.Operation[Any],
        finish: Callable[[Any], T],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._operation = operation
        self._finish = finish
        self._failed = failed

    def wait(self) -> T:
        """Waits for the result. Other threads run meanwhile, and Ctrl-C works."""
        try:
            result = self._operation.wait()
        except BaseException:
            self._failed()
            raise
        return self._finish(result)

    def cancel(self) -> None:
        """Leaves the call, perhaps after it has ended but before its result was taken."""
        self._operation.cancel()
        self._failed()

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()

    async def _result(self) -> T:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:  # the loop is closed: no task waits any more
                pass

        self._operation.on_done(tell)
        try:
            await ended
        except BaseException:
            self.cancel()
            raise
        try:
            result = self._operation.result()
        except BaseException:
            self._failed()
            raise
        return self._finish(result)


class Together(Generic[T, F]):
    """Calls to several stores, in flight at the same time, and one result of all. A call that fails leaves the others alone;
    a caller that leaves cancels them."""

    def __init__(
        self, calls: Iterable[Callable[[], Pending[T] | None]], finish: Callable[[list[T | TensorholdError | None]], F]
    ) -> None:
        """Begins the calls; none for a store that needs none. ``finish`` gets the outcome of each."""
        self._begun: list[Pending[T] | TensorholdError | None] = []
        self._finish = finish
        with self._or_cancelled():
            for call in calls:
                try:
                    self._begun.append(call())
                except TensorholdError as error:
                    self._begun.append(error)

    def wait(self) -> F:
        outcomes: list[T | TensorholdError | None] = []
        with self._or_cancelled():
            for call in self._begun:
                try:
                    outcomes.append(call.wait() if isinstance(call, Pending) else call)
                except TensorholdError as error:
                    outcomes.append(error)
        return self._finish(outcomes)

    def __await__(self) -> Generator[Any, None, F]:
        outcomes: list[T | TensorholdError | None] = []
        with self._or_cancelled():
            for call in self._begun:
                try:
                    outcomes.append((yield from call.__await__()) if isinstance(call, Pending) else call)
                except TensorholdError as error:
                    outcomes.append(error)
        return self._finish(outcomes)

    @contextmanager
    def _or_cancelled(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            for call in self._begun:
                if isinstance(call, Pending):
                    call.cancel()
            raise


class Settling:
    """Waits for puts, the oldest first, until at most so many are left, and notes those that failed."""

    def __init__(
        self, begun: deque[tuple[str, Pending[SampleRef]]], most: int, failed: dict[str, TensorholdError]
    ) -> None:
        self._begun = begun
        self._most = most
        self._failed = failed

    def wait(self) -> None:
        while len(self._begun) > self._most:
            sample, put = self._begun.popleft()
            try:
                put.wait()
            except TensorholdError as error:
                self._failed[sample] = error

    def __await__(self) -> Generator[Any, None, None]:
        while len(self._begun) > self._most:
            sample, put = self._begun.popleft()
            try:
                yield from put.__await__()
            except TensorholdError as error:
                self._failed[sample] = error


class Calls(Generic[L]):
    """The calls of one store. ``L`` is the class of leases."""

    def __init__(self, core: Callable[[], _tensorhold.Core], timeout: float, lease: Callable[[_tensorhold.Lease], L]) -> None:
        self._core = core
        self._timeout = timeout
        self._lease = lease

    def within(self, timeout: float | None) -> float:
        """The time limit of a call, in seconds."""
        return self._timeout if timeout is None else float(timeout)

    def _core_for(self, leases: list[_tensorhold.Lease]) -> _tensorhold.Core:
        for lease in leases:
            _ = lease.token  # raises in a forked child, whose own store does not know the lease
        return self._core()

    def put(self, item: PutItem, timeout: float | None) -> Pending[SampleRef]:
        return Pending(self._core().put([to.item(item)], self.within(timeout)), to.only(to.to_ref))

    def writer(self) -> _tensorhold.Writer:
        """What joins the puts that are under way at the same time."""
        return self._core().writer()

    def put_through(self, writer: _tensorhold.Writer, item: PutItem, timeout: float | None) -> Pending[SampleRef]:
        return Pending(writer.put(to.item(item), self.within(timeout)), to.only(to.to_ref))

    def settle(
        self, begun: deque[tuple[str, Pending[SampleRef]]], most: int, failed: dict[str, TensorholdError]
    ) -> Settling:
        """Waits for puts that were begun, the oldest first, until at most so many are left."""
        return Settling(begun, most, failed)

    def put_many(self, items: Iterable[PutItem], timeout: float | None) -> Pending[list[SampleRef | TensorholdError]]:
        prepared = [to.item_or_error(item) for item in items]
        good = [one for one in prepared if not isinstance(one, TensorholdError)]

        def finish(results: list[Any]) -> list[SampleRef | TensorholdError]:
            put = iter(to.each(to.to_ref)(results))
            return [one if isinstance(one, TensorholdError) else next(put) for one in prepared]

        return Pending(self._core().put(good, self.within(timeout)), finish)

    def take(self, group: str, count: int, timeout: float | None, ahead: int = 0) -> Pending[list[L]]:
        operation = self._core().take(group, count, ahead, self.within(timeout))
        return Pending(operation, lambda leases: [self._lease(lease) for lease in leases])

    def take_get(self, group: str, names: list[str] | None, view: View, idle: float) -> Pending[Taken[L]]:
        operation = self._core().take_get(group, names, idle, self._timeout)

        def finish(taken: list[tuple[_tensorhold.Lease, Any]]) -> Taken[L]:
            gets = to.each(lambda got: to.views(got, None, view))([got for _, got in taken])
            return [(self._lease(lease), got) for (lease, _), got in zip(taken, gets)]

        return Pending(operation, finish)

    def lease(self, ref: SampleRef, group: str, timeout: float | None) -> Pending[L]:
        return Pending(self._core().lease([to.from_ref(ref)], group, self.within(timeout)), to.only(self._lease))

    def lease_many(
        self, refs: Iterable[SampleRef], group: str, timeout: float | None
    ) -> Pending[list[L | TensorholdError]]:
        operation = self._core().lease([to.from_ref(ref) for ref in refs], group, self.within(timeout))
        return Pending(operation, to.each(self._lease))

    def lease_shared(self, ref: SampleRef | str, timeout: float | None) -> Pending[L]:
        return Pending(self._core().lease_shared([to.from_name(ref)], self.within(timeout)), to.only(self._lease))

    def lease_shared_many(self, refs: Iterable[SampleRef | str], timeout: float | None) -> Pending[list[L | TensorholdError]]:
        operation = self._core().lease_shared([to.from_name(ref) for ref in refs], self.within(timeout))
        return Pending(operation, to.each(self._lease))

    def get(
        self,
        what: _tensorhold.Lease | SampleRef | str,
        names: Iterable[str] | None,
        into: Mapping[str, Any] | None,
        view: View,
        device: torch.device | str | int | None,
        timeout: float | None,
    ) -> Pending[dict[str, Any]]:
        to.check_view(view)
        if into is not None and (names is not None or device is not None):
            raise Invalid("into says which tensors and where: pass neither names nor device with it", operation="python.get")
        wanted, within = to.names_of(names), self.within(timeout)
        on_device = to.on_device(device, view)
        allocator = to.allocator(on_device)
        given = None if into is None else to.given(into, written=True)
        destinations = allocator if given is None else given
        if isinstance(what, _tensorhold.Lease):
            operation = self._core_for([what]).get(what, wanted, destinations, within)
        else:
            operation = self._core().read_get(to.from_named(what), wanted, destinations, within)
        if allocator is not None:
            return Pending(operation, lambda _: allocator.handed_out())
        return Pending(operation, lambda got: to.views(got, into, view, on_device), lambda: callers_wait(given or ()))

    def get_many(
        self,
        samples: Iterable[_tensorhold.Lease | SampleRef | str],
        names: Iterable[str] | None,
        view: View,
        timeout: float | None,
    ) -> Pending[list[dict[str, Any] | TensorholdError]]:
        to.check_view(view)
        asked = [one if isinstance(one, _tensorhold.Lease) else to.from_named(one) for one in samples]
        core = self._core_for([one for one in asked if isinstance(one, _tensorhold.Lease)])
        operation = core.get_many(asked, to.names_of(names), self.within(timeout))
        return Pending(operation, to.each(lambda got: to.views(got, None, view)))

    def lease_get(
        self, ref: SampleRef | str, names: Iterable[str] | None, view: View, timeout: float | None
    ) -> Pending[tuple[L, dict[str, Any]]]:
        to.check_view(view)
        operation = self._core().lease_get(to.from_named(ref), to.names_of(names), self.within(timeout))
        return Pending(operation, lambda both: (self._lease(both[0]), to.views(both[1], None, view)))

    def find(self, samples: Iterable[str], timeout: float | None) -> Pending[list[Found | None]]:
        operation = self._core().find(to.names_of(samples) or [], self.within(timeout))
        return Pending(operation, lambda found: [to.to_found(one) for one in found])

    def tiers(self, samples: Iterable[str], timeout: float | None) -> Pending[list[Tier | None]]:
        return Pending(self._core().tiers(to.names_of(samples) or [], self.within(timeout)), list)

    def prefetch(self, samples: Iterable[str], timeout: float | None) -> Pending[Prefetch]:
        return Pending(self._core().prefetch(to.names_of(samples) or [], self.within(timeout)), Prefetch)

    def ack(self, leases: list[_tensorhold.Lease], timeout: float | None) -> Pending[list[Answered | TensorholdError]]:
        return Pending(self._core_for(leases).ack(leases, self.within(timeout)), to.each(to.to_answered))

    def nack(self, leases: list[_tensorhold.Lease], timeout: float | None) -> Pending[list[Answered | TensorholdError]]:
        return Pending(self._core_for(leases).nack(leases, self.within(timeout)), to.each(to.to_answered))

    def release(self, leases: list[_tensorhold.Lease], timeout: float | None) -> Pending[list[TensorholdError | None]]:
        return Pending(self._core_for(leases).release(leases, self.within(timeout)), list)

    def use_up(self, leases: list[_tensorhold.Lease], timeout: float | None) -> Pending[list[Answered | TensorholdError]]:
        return Pending(self._core_for(leases).use_up(leases, self.within(timeout)), to.each(to.to_answered))

    def renew(self, leases: list[_tensorhold.Lease], timeout: float | None) -> Pending[list[TensorholdError | None]]:
        return Pending(self._core_for(leases).renew(leases, self.within(timeout)), list)

    def abort(self, samples: Iterable[str], timeout: float | None) -> Pending[list[TensorholdError | None]]:
        return Pending(self._core().abort(to.names_of(samples) or [], self.within(timeout)), list)

    def retire(self, refs: Iterable[SampleRef], timeout: float | None) -> Pending[list[Answered | TensorholdError]]:
        operation = self._core().retire([to.from_ref(ref) for ref in refs], self.within(timeout))
        return Pending(operation, to.each(to.to_answered))

    def reopen(self, refs: Iterable[SampleRef], timeout: float | None) -> Pending[list[TensorholdError | None]]:
        return Pending(self._core().reopen([to.from_ref(ref) for ref in refs], self.within(timeout)), list)

    def requeue(self, refs: Iterable[SampleRef], timeout: float | None) -> Pending[list[TensorholdError | None]]:
        return Pending(self._core().requeue([to.from_ref(ref) for ref in refs], self.within(timeout)), list)

    def drop_dead(self, refs: Iterable[SampleRef], timeout: float | None) -> Pending[list[TensorholdError | None]]:
        return Pending(self._core().drop_dead([to.from_ref(ref) for ref in refs], self.within(timeout)), list)

    def dead_letters(
        self, after: str | None, limit: int, timeout: float | None
    ) -> Pending[tuple[list[DeadLetter], str | None]]:
        return Pending(self._core().dead_letters(after, limit, self.within(timeout)), to.to_dead_letters)

    def announce(
        self, sample: str, keys: Iterable[str], nbytes: int, timeout: float | None
    ) -> Pending[_tensorhold.Announced]:
        return Pending(self._core().announce(sample, to.names_of(keys) or [], nbytes, self.within(timeout)), to.same)

    def adopt(
        self,
        what: _tensorhold.Announced | str,
        tensors: Iterable[AdoptedTensor],
        groups: Iterable[str] | None,
        retain: bool,
        max_attempts: int,
        timeout: float | None,
    ) -> Pending[SampleRef]:
        rest = (to.adopted(tensors), to.groups_of(groups), retain, max_attempts, self.within(timeout))
        core = self._core()
        operation = core.adopt_now(what, *rest) if isinstance(what, str) else core.adopt(what, *rest)
        return Pending(operation, to.to_ref)

    def discard(self, announced: _tensorhold.Announced, timeout: float | None) -> Pending[None]:
        return Pending(self._core().discard(announced, self.within(timeout)), to.same)

    def empty(self, shape: Iterable[int], dtype: object, timeout: float | None) -> Pending[Tensor]:
        given = (tuple(shape), dtype)
        operation, made = self._buffers([given], timeout)
        return Pending(operation, lambda memories: made(memories)[0])

    def empty_many(
        self, tensors: Iterable[tuple[Iterable[int], object]], timeout: float | None
    ) -> Pending[list[Tensor]]:
        operation, made = self._buffers([(tuple(shape), dtype) for shape, dtype in tensors], timeout)
        return Pending(operation, made)

    def _buffers(
        self, tensors: list[tuple[tuple[int, ...], object]], timeout: float | None
    ) -> tuple[_tensorhold.Operation[list[_tensorhold.Memory]], Callable[[list[_tensorhold.Memory]], list[Tensor]]]:
        specs = [(_dtypes.name_of(dtype), dims) for dims, dtype in tensors]
        sizes = [_tensorhold.spec_bytes(name, dims) for name, dims in specs]
        if 0 in sizes:
            raise Invalid("a tensor without bytes needs no memory of the pool", operation="python.empty")

        def made(memories: list[_tensorhold.Memory]) -> list[Tensor]:
            each = zip(specs, sizes, memories)
            return [Tensor("", name, dims, nbytes, memory) for (name, dims), nbytes, memory in each]

        return self._core().buffers(sizes, self.within(timeout)), made

    def sweep(self, timeout: float | None) -> Pending[Swept]:
        return Pending(self._core().sweep(self.within(timeout)), to.to_swept)

    def sessions(self, timeout: float | None) -> Pending[list[LiveSession]]:
        return Pending(self._core().sessions(self.within(timeout)), lambda all: [to.to_session(one) for one in all])

    def lost(self, everyones: bool, timeout: float | None) -> Pending[list[SampleRef]]:
        return Pending(self._core().lost(everyones, self.within(timeout)), lambda all: [to.to_ref(one) for one in all])

    def quarantined(self, after: Quarantined | None, limit: int, timeout: float | None) -> Pending[list[Quarantined]]:
        place = None if after is None else (after.key, after.version)
        return Pending(self._core().quarantined(place, limit, self.within(timeout)), to.to_quarantined)

    def quarantined_bytes(self, which: Quarantined, timeout: float | None) -> Pending[bytes]:
        operation = self._core().quarantined_bytes(which.key, which.version, which.in_place, self.within(timeout))
        return Pending(operation, to.same)

    def set_budget(self, nbytes: int, timeout: float | None) -> Pending[None]:
        return Pending(self._core().set_budget(nbytes, self.within(timeout)), to.same)

    def end(self, others: bool, timeout: float | None) -> Pending[int]:
        return Pending(self._core().end(others, self.within(timeout)), to.same)

    def drain(self, timeout: float | None) -> Pending[None]:
        return Pending(self._core().drain(self.within(timeout)), to.same)

    def health(self, timeout: float | None) -> Pending[dict[str, Any]]:
        return Pending(self._core().health(self.within(timeout)), to.same)
