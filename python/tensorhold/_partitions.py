"""A store that is larger than one etcd cluster: several stores, and samples divided among them by their ids."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tensorhold import _convert as to
from tensorhold import _tensorhold, _process
from tensorhold._calls import Pending, Together
from tensorhold._convert import View
from tensorhold._held import Held
from tensorhold._opening import open as open_store
from tensorhold._store import FeatureStore, Lease
from tensorhold._values import Answered, Found, PutItem, SampleRef
from tensorhold.errors import TensorholdError, Invalid

if TYPE_CHECKING:
    from tensorhold._inputs import TensorLike

__all__ = ["PartitionedStore", "open_partitions"]


class _Store(Protocol):
    """What a store of either face has."""

    _calls: Any

    @property
    def name(self) -> str: ...

    def _core(self) -> _tensorhold.Core: ...

    def _lease(self, native: _tensorhold.Lease) -> Any: ...

    def _begin_close(self, within: float) -> Pending[None] | None: ...


S = TypeVar("S", bound=_Store)
T = TypeVar("T")
R = TypeVar("R")


class Partitions(Generic[S]):
    """What both faces of a partitioned store share."""

    def __init__(self, stores: Iterable[S]) -> None:
        self._stores = tuple(stores)

    def __repr__(self) -> str:
        return f"PartitionedStore({', '.join(store.name for store in self._stores)})"

    @property
    def stores(self) -> tuple[S, ...]:
        """The partitions, in order. Each is a store like any other."""
        return self._stores

    def of(self, sample: str | SampleRef) -> S:
        """The partition that has a sample. Every call that concerns one sample can be made there."""
        name = sample if isinstance(sample, str) else sample.sample
        return self._stores[_tensorhold.partition_of(name, len(self._stores))]

    def _take(self, group: str, count: int, timeout: float | None) -> Pending[list[Any]]:
        cores = [store._core() for store in self._stores]
        first = random.randrange(len(cores))  # processes begin at different partitions, also those that were forked
        operation = _tensorhold.take_of_any(cores, first, group, count, self._stores[0]._calls.within(timeout))

        def finish(taken: tuple[int, list[_tensorhold.Lease]]) -> list[Any]:
            at, leases = taken
            return [self._stores[at]._lease(lease) for lease in leases]

        return Pending(operation, finish)

    def _put_many(self, items: Iterable[PutItem], timeout: float | None) -> Together[Any, list[SampleRef | TensorholdError]]:
        return self._each(items, lambda item: item.sample, lambda store, some: store._calls.put_many(some, timeout))

    def _find(self, samples: Iterable[str], timeout: float | None) -> Together[Any, list[Found | None]]:
        names = to.names_of(samples) or []
        return self._each(names, str, lambda store, some: store._calls.find(some, timeout), _checked)

    def _ack_many(self, leases: Iterable[Held], timeout: float | None) -> Together[Any, list[Answered | TensorholdError]]:
        return self._each(
            leases,
            lambda lease: lease.sample,
            lambda store, some: store._calls.ack([lease.native for lease in some], timeout),
        )

    def _each(
        self,
        items: Iterable[T],
        sample: Callable[[T], str],
        begin: Callable[[S, list[T]], Pending[list[Any]]],
        finish: Callable[[list[Any]], list[Any]] = to.same,
    ) -> Together[Any, list[Any]]:
        """Begins a call for the items of each partition. The result has one for each item, in their order; an error of a call
        is that of all its items."""
        results: list[Any] = []
        by_store: dict[int, list[tuple[int, T]]] = {}
        for place, item in enumerate(items):
            results.append(None)
            try:
                at = _tensorhold.partition_of(sample(item), len(self._stores))
            except TensorholdError as error:  # no sample has this id
                results[place] = error
            else:
                by_store.setdefault(at, []).append((place, item))

        def joined(outcomes: list[Any]) -> list[Any]:
            for some, outcome in zip(by_store.values(), outcomes):
                each = itertools.repeat(outcome) if isinstance(outcome, TensorholdError) else outcome
                for (place, _), result in zip(some, each):
                    results[place] = result
            return finish(results)

        calls = [partial(begin, self._stores[at], [item for _, item in some]) for at, some in by_store.items()]
        return Together(calls, joined)

    def _close(self, timeout: float | None) -> Together[None, list[None]]:
        within = self._stores[0]._calls.within(timeout)
        return Together([partial(store._begin_close, within) for store in self._stores], _checked)


def _checked(results: list[R | TensorholdError]) -> list[R]:
    """The results; raises the first error among them."""
    return [to.checked([result]) for result in results]


class PartitionedStore(Partitions[FeatureStore]):
    """A store that is divided by sample id among several stores, its partitions, which may lie on several etcd clusters.
    Open one with :func:`tensorhold.open_partitions`; as a context manager it closes at the end.

    A sample belongs to one partition, and all processes agree on which. Takes are from all partitions, and not in the order
    of the puts. Calls that are not here are made on a partition: :meth:`of`, :attr:`stores`.
    """

    def put(
        self,
        sample: str,
        tensors: Mapping[str, TensorLike],
        *,
        groups: Iterable[str] | None = None,
        retain: bool = False,
        max_attempts: int = 3,
        timeout: float | None = None,
    ) -> SampleRef:
        """Puts a sample into its partition. See :meth:`FeatureStore.put`."""
        store = self.of(sample)
        return store.put(sample, tensors, groups=groups, retain=retain, max_attempts=max_attempts, timeout=timeout)

    def put_many(self, items: Iterable[PutItem], *, timeout: float | None = None) -> list[SampleRef | TensorholdError]:
        """Puts samples, in one batch for each partition. Returns one result per sample: its reference, or the error."""
        return self._put_many(items, timeout).wait()

    def take(self, group: str, count: int = 1, *, timeout: float | None = None) -> list[Lease]:
        """Takes the next samples of a group, up to ``count``, of one partition. Waits for the first one; returns an empty list
        at the timeout. A partition whose cluster does not answer holds up none of the others; if none of these has a sample,
        its error is raised. One that refuses ends a take that waits."""
        return self._take(group, count, timeout).wait()

    def get(
        self,
        what: Lease | SampleRef | str,
        names: Iterable[str] | None = None,
        *,
        as_: View = "tensor",
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Gets a sample's tensors. See :meth:`FeatureStore.get`."""
        held = what.native if isinstance(what, Lease) else what
        store = self.of(what.sample if isinstance(what, Lease) else what)
        return store._calls.get(held, names, None, as_, None, timeout).wait()

    def find(self, samples: Iterable[str], *, timeout: float | None = None) -> list[Found | None]:
        """Looks up samples without taking them; None for a sample that is not live."""
        return self._find(samples, timeout).wait()

    def ack_many(self, leases: Iterable[Lease], *, timeout: float | None = None) -> list[Answered | TensorholdError]:
        """Acknowledges leases, in one batch for each partition."""
        return self._ack_many(leases, timeout).wait()

    def close(self, *, timeout: float | None = None) -> None:
        """Closes all partitions, at the same time. Raises the first error when all were tried."""
        self._close(timeout).wait()

    def __enter__(self) -> PartitionedStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lazy_partitions(store: str, partitions: int, settings: dict[str, Any]) -> list[FeatureStore]:
    """The partitions of a store, not opened yet. The budget, wherever it was set, is divided among them."""
    if settings.get("client") is not None:
        # Their engines would each register the memory that they use, and one client registers a range once.
        raise Invalid("the partitions cannot share a client; leave client out, and each has its own", operation="python.open")
    settings["lazy"] = True
    stores = [open_store(name, **settings) for name in _tensorhold.partition_names(store, partitions)]
    budget = stores[0].settings.budget
    if budget is None:
        return stores
    each = -(-budget // partitions)
    return [FeatureStore(replace(one.settings, budget=each)) for one in stores]


def open_partitions(store: str, partitions: int, **settings: Any) -> PartitionedStore:
    """Opens a store that is divided by sample id into ``partitions`` stores: ``train.0-of-4`` to ``train.3-of-4``. They are
    placed on the clusters of the index in turn (``tensorhold clusters``), and each stays where it began.

    The number is part of their names and cannot be changed: all processes give the same. ``settings`` are those of
    :func:`tensorhold.open`; ``budget`` is for all partitions together, and each has an equal part of it. Each partition has a
    session, a client of the engine (``client`` is refused) and a pool of memory (``pool_bytes``) of its own in each process.
    They are opened one after the other, each within ``timeout``; with ``lazy``, each at its first call.
    """
    lazy = settings.get("lazy", False)
    opened = PartitionedStore(lazy_partitions(store, partitions, settings))
    if lazy:
        return opened
    try:
        for one in opened.stores:
            one.connect()
    except BaseException:
        try:
            opened.close()
        except TensorholdError as trouble:
            _process.log.warning("a partition was not closed; its session ends by itself: %s", trouble)
        raise
    return opened
