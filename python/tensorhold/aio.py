"""The asyncio face: every call is awaited, and the event loop is never blocked.

::

    async with await tensorhold.aio.open("run-7") as store:
        await store.put("sample-1", {"hidden": tensor}, groups=["trainers"])
        for lease in await store.take("trainers", count=4):
            async with lease:
                train(await lease.get(as_="torch"))

:mod:`tensorhold` documents what each call does. Cancelling an await (``asyncio.wait_for``, ``asyncio.timeout``) leaves
nothing half-done: a wait ends; a put that is not committed yet is undone, a committed one stands; a lease that did not
reach its caller is returned as if it had never been taken; memory returns to the pool. A store belongs to the process
that opened it: it cannot be pickled, and its calls raise in a forked child.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, ParamSpec

from tensorhold import _events, _tensorhold, _process
from tensorhold._awaited import Lease, StoreCalls, Writer
from tensorhold._calls import Pending
from tensorhold._opening import open as _plain_open
from tensorhold._partitions import Partitions, lazy_partitions
from tensorhold._settings import Settings, warn_about_budget
from tensorhold._store import FeatureStore as _PlainStore
from tensorhold._values import Answered, Found, PutItem, SampleRef
from tensorhold.errors import TensorholdError, Unavailable

__all__ = ["FeatureStore", "Lease", "PartitionedStore", "Writer", "open", "open_partitions"]


class FeatureStore(StoreCalls):
    """Samples of tensors, kept until every group has acknowledged them. Open one with :func:`tensorhold.aio.open`; it closes at the end of ``async with``.

    Several event loops, in any threads, may share it. Every call takes a ``timeout`` in seconds; the default is the
    store's setting.
    """

    def __init__(self, settings: Settings, *, client: object | None = None) -> None:
        super().__init__(settings, client)

    def __reduce__(self) -> Any:
        raise TypeError("this store cannot be pickled; pass store.settings, and open another there")

    def _core(self) -> _tensorhold.Core:
        if self._closed or self._native is None:
            raise Unavailable("this store is closed; open another", operation="python.store")
        return self._native

    async def connect(self) -> None:
        """Opens the store. :func:`open` calls it."""
        if self._native is None and not self._closed:
            settings = self._settings
            _events.start()
            operation = _tensorhold.open_store(
                settings.to_json(), self._client, settings.timeout, settings.native_keys(), settings.native_secrets()
            )
            self._native = await Pending(operation, lambda core: core)
            self._pid = os.getpid()
            _process.remember(self)
            warn_about_budget(self.name, settings.budget, self._core().budget())

    async def close(self, *, timeout: float | None = None) -> None:
        """Ends this process's membership: ends the calls that wait (they raise :class:`Unavailable`), waits for those whose
        bytes move, and frees what was retired here. Idempotent."""
        closing = self._begin_close(self._calls.within(timeout))
        if closing is not None:
            await closing

    def _begin_close(self, within: float) -> Pending[None] | None:
        self._closed = True
        native, self._native = self._native, None
        _process.forget(self)
        if native is None or self._pid != os.getpid():
            return None
        return Pending(native.close(within), lambda nothing: None)

    async def __aenter__(self) -> FeatureStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


P = ParamSpec("P")


def _awaited(plain: Callable[P, _PlainStore]) -> Callable[P, Awaitable[FeatureStore]]:
    async def opened(*args: P.args, **settings: P.kwargs) -> FeatureStore:
        settings["lazy"] = True  # the settings are only parsed; opening here would block the loop
        made = plain(*args, **settings)
        store = FeatureStore(made.settings, client=made.client)
        await store.connect()
        return store

    opened.__doc__ = "Opens a store. The arguments are those of :func:`tensorhold.open`; it is never lazy."
    return opened


open = _awaited(_plain_open)  # noqa: A001 - tensorhold.aio.open


class PartitionedStore(Partitions[FeatureStore]):
    """A store that is divided by sample id among several stores, its partitions. Open one with
    :func:`tensorhold.aio.open_partitions`. :class:`tensorhold.PartitionedStore` documents it; calls that concern one sample are
    made on its partition: ``await store.of(sample).put(sample, tensors, groups=groups)``."""

    async def put_many(self, items: Iterable[PutItem], *, timeout: float | None = None) -> list[SampleRef | TensorholdError]:
        """Puts samples, in one batch for each partition. Returns one result per sample: its reference, or the error."""
        return await self._put_many(items, timeout)

    async def take(self, group: str, count: int = 1, *, timeout: float | None = None) -> list[Lease]:
        """Takes the next samples of a group, up to ``count``, of one partition."""
        return await self._take(group, count, timeout)

    async def find(self, samples: Iterable[str], *, timeout: float | None = None) -> list[Found | None]:
        """Looks up samples without taking them; None for a sample that is not live."""
        return await self._find(samples, timeout)

    async def ack_many(self, leases: Iterable[Lease], *, timeout: float | None = None) -> list[Answered | TensorholdError]:
        """Acknowledges leases, in one batch for each partition."""
        return await self._ack_many(leases, timeout)

    async def close(self, *, timeout: float | None = None) -> None:
        """Closes all partitions, at the same time. Raises the first error when all were tried."""
        await self._close(timeout)

    async def __aenter__(self) -> PartitionedStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_partitions(store: str, partitions: int, **settings: Any) -> PartitionedStore:
    """Opens a store that is divided by sample id. The arguments are those of :func:`tensorhold.open_partitions`; it is never lazy."""
    opened = PartitionedStore(FeatureStore(one.settings) for one in lazy_partitions(store, partitions, settings))
    try:
        for one in opened.stores:
            await one.connect()
    except BaseException:
        try:
            await opened.close()
        except TensorholdError as trouble:
            _process.log.warning("a partition was not closed; its session ends by itself: %s", trouble)
        raise
    return opened
