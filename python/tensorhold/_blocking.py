"""The calls of the blocking face: each waits for its result. ``_awaited.py`` is made from this file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from tensorhold import _tensorhold, _process
from tensorhold._calls import Calls, Pending
from tensorhold._convert import View, check_view, checked, estimate, names_of
from tensorhold._held import Held
from tensorhold._tensorhold import Announced
from tensorhold._prefetch import Prefetch, Tier
from tensorhold._settings import Settings
from tensorhold._stream import Stream
from tensorhold._tensor import Tensor
from tensorhold._values import AdoptedTensor, Answered, DeadLetter, Found, LiveSession, PutItem, Quarantined, SampleRef, Swept, TensorSpec
from tensorhold.errors import Fenced, TensorholdError, Invalid, PutsFailed

if TYPE_CHECKING:
    import numpy
    import torch

    from tensorhold._inputs import TensorLike


class Lease(Held):
    """A sample that this process has taken, for a group or for reading only.

    While the lease holds, the sample's bytes stay. As a context manager the lease answers for itself: it is
    acknowledged at the end of the block, and handed back if the block raises. A lease that is dropped without an answer
    is released in the background; if the caller never looked at it, the sample counts as never taken.
    """

    __slots__ = ("_calls",)

    def __init__(self, calls: Calls[Lease], native: _tensorhold.Lease) -> None:
        super().__init__(native)
        self._calls = calls

    @overload
    def get(
        self, names: Iterable[str] | None = ..., *, as_: Literal["tensor"] = ..., timeout: float | None = ...
    ) -> dict[str, Tensor]: ...
    @overload
    def get(
        self, names: Iterable[str] | None = ..., *, as_: Literal["torch"], device: torch.device | str | int | None = ..., timeout: float | None = ...
    ) -> dict[str, torch.Tensor]: ...
    @overload
    def get(
        self, names: Iterable[str] | None = ..., *, as_: Literal["numpy"], timeout: float | None = ...
    ) -> dict[str, numpy.ndarray[Any, Any]]: ...
    @overload
    def get(self, *, into: Mapping[str, TensorLike], timeout: float | None = ...) -> dict[str, Any]: ...
    def get(
        self,
        names: Iterable[str] | None = None,
        *,
        into: Mapping[str, TensorLike] | None = None,
        as_: View = "tensor",
        device: torch.device | str | int | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """The sample's tensors: exactly the committed bytes, or an error. See :meth:`FeatureStore.get`."""
        return self._calls.get(self.native, names, into, as_, device, timeout).wait()

    def ack(self, *, timeout: float | None = None) -> Answered:
        """Acknowledges that the sample was used. Final; the last group's ack frees the sample."""
        return checked(self._calls.ack([self.native], timeout).wait())

    def nack(self, *, timeout: float | None = None) -> Answered:
        """Hands the sample back unused: another consumer of the group takes it, unless this was the last attempt."""
        return checked(self._calls.nack([self.native], timeout).wait())

    def release(self, *, timeout: float | None = None) -> None:
        """Releases the lease. For a group's lease this is a nack."""
        checked(self._calls.release([self.native], timeout).wait())

    def use_up(self, *, timeout: float | None = None) -> Answered:
        """Releases a lease for reading, and with the last one the sample, in one step: it is retired and freed. A sample that
        was put for groups stays for them, and a retained one stays."""
        return checked(self._calls.use_up([self.native], timeout).wait())

    def renew(self, *, timeout: float | None = None) -> None:
        """Extends the lease to its full duration from now. A get does so by itself while bytes move."""
        checked(self._calls.renew([self.native], timeout).wait())

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.answered:
            return
        if error is None and self.group is not None:
            self.ack()
            return
        try:
            (self.release() if self.group is None else self.nack())
        except Fenced:
            pass  # there is nothing left to release
        except TensorholdError as trouble:
            if error is None:
                raise
            _process.log.warning("a lease was not handed back; it expires by itself: %s", trouble)


class Writer:
    """Puts samples with several in flight. Those that wait for their turn at the same time go together, with one call to
    the engine and one transaction.

    Made by :meth:`FeatureStore.writer`. At the end of its block it waits for what is in flight. If the block raises,
    what is in flight and not committed is undone.
    """

    def __init__(self, calls: Calls[Lease], in_flight: int) -> None:
        if in_flight < 1:
            raise Invalid("at least one put must be in flight", operation="python.writer")
        self._calls = calls
        self._in_flight = in_flight
        self._native: _tensorhold.Writer | None = None
        self._begun: deque[tuple[str, Pending[SampleRef]]] = deque()
        self._failed: dict[str, TensorholdError] = {}

    def put(
        self,
        sample: str,
        tensors: Mapping[str, TensorLike],
        *,
        groups: Iterable[str] | None = None,
        retain: bool = False,
        max_attempts: int = 3,
        timeout: float | None = None,
    ) -> None:
        """Begins to put a sample, as :meth:`FeatureStore.put` does; first waits until fewer than ``in_flight`` are under way.

        Raises :class:`PutsFailed` if earlier puts have failed meanwhile; then this one is not begun. Do not change the
        tensors before the sample is put: until :meth:`flush`, or until ``in_flight`` further puts have begun.
        """
        self._calls.settle(self._begun, self._in_flight - 1, self._failed).wait()
        self._raise_failed()
        if self._native is None:
            self._native = self._calls.writer()
        put = self._calls.put_through(self._native, PutItem(sample, tensors, groups, retain, max_attempts), timeout)
        self._begun.append((sample, put))

    def flush(self) -> None:
        """Waits until nothing is in flight, each put within its timeout. Raises :class:`PutsFailed` if puts have failed."""
        self._calls.settle(self._begun, 0, self._failed).wait()
        self._native = None  # it holds the store open
        self._raise_failed()

    def _raise_failed(self) -> None:
        if self._failed:
            failed, self._failed = self._failed, {}
            raise PutsFailed(failed)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()
            return
        # Without their last reference, calls are cancelled.
        self._begun.clear()
        self._native = None


class StoreCalls:
    """The calls of a store, and what needs none."""

    def __init__(self, settings: Settings, client: object | None) -> None:
        self._settings = settings
        self._client = client
        self._native: _tensorhold.Core | None = None
        self._pid = 0
        self._closed = False
        self._calls: Calls[Lease] = Calls(self._core, settings.timeout, self._lease)

    def _core(self) -> _tensorhold.Core:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"FeatureStore({self.name!r}, {'closed' if self._closed else self._settings.master})"

    @property
    def name(self) -> str:
        """The store's name."""
        return self._settings.store

    @property
    def settings(self) -> Settings:
        """How it is reached, and how it behaves."""
        return self._settings

    @property
    def client(self) -> object | None:
        """The engine's client that the caller passed when opening the store; None if the store made its own."""
        return self._client

    @property
    def closed(self) -> bool:
        """Whether it was closed in this process."""
        return self._closed

    def _lease(self, native: _tensorhold.Lease) -> Lease:
        return Lease(self._calls, native)

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
        """Puts a sample: it becomes visible as a whole or not at all. If a sample with this id is live, this one
        replaces it.

        Each of ``groups`` gets it once. When all groups have acknowledged it, it is freed, unless ``retain`` keeps it
        for another epoch (:meth:`reopen`). ``groups`` must be given: with ``groups=()`` no take returns the sample, and it
        stays until it is used up, retired or aborted, or the store is ended. A group may take it
        ``max_attempts`` times. Over the store's budget the call waits for room, and raises :class:`Capacity` at the
        timeout.

        Do not change the tensors before the call returns.
        """
        return self._calls.put(PutItem(sample, tensors, groups, retain, max_attempts), timeout).wait()

    def writer(self, *, in_flight: int = 8) -> Writer:
        """A writer that keeps up to ``in_flight`` puts under way::

            with store.writer() as writer:
                for sample, tensors in samples:
                    writer.put(sample, tensors, groups=["train"])
        """
        return Writer(self._calls, in_flight)

    def put_many(self, items: Iterable[PutItem], *, timeout: float | None = None) -> list[SampleRef | TensorholdError]:
        """Puts samples in one batch. Returns one result per sample: its reference, or the error."""
        return self._calls.put_many(items, timeout).wait()

    def take(self, group: str, count: int = 1, *, ahead: int = 0, timeout: float | None = None) -> list[Lease]:
        """Takes the next samples of a group, up to ``count``. Waits for the first one; returns an empty list at the
        timeout. With ``ahead``, that many further samples are read ahead if they lie on SSD, while the caller works."""
        return self._calls.take(group, count, timeout, ahead).wait()

    def stream(
        self,
        group: str,
        names: Iterable[str] | None = None,
        *,
        prefetch: int = 2,
        as_: View = "tensor",
        idle: float | None = None,
    ) -> Stream[Lease]:
        """Iterates over the samples of a group: pairs of a lease and the sample's tensors. While the caller uses one sample, the
        next ``prefetch`` are taken and their bytes are under way, each under its own lease. It ends when no sample came for
        ``idle`` seconds (by default the store's timeout); closing it gives back what was taken and not used, without costing
        an attempt."""
        check_view(as_)
        wanted, wait = names_of(names), self._calls.within(idle)
        return Stream(lambda: self._calls.take_get(group, wanted, as_, wait), prefetch)

    def lease(self, ref: SampleRef, group: str, *, timeout: float | None = None) -> Lease:
        """Takes exactly this sample for a group."""
        return self._calls.lease(ref, group, timeout).wait()

    def lease_many(
        self, refs: Iterable[SampleRef], group: str, *, timeout: float | None = None
    ) -> list[Lease | TensorholdError]:
        """Takes these samples for a group. Returns one result per sample: a lease, or the error."""
        return self._calls.lease_many(refs, group, timeout).wait()

    def lease_shared(self, ref: SampleRef | str, *, timeout: float | None = None) -> Lease:
        """Takes a sample for reading only, alongside any number of other readers. An id means the live generation."""
        return self._calls.lease_shared(ref, timeout).wait()

    def lease_shared_many(
        self, refs: Iterable[SampleRef | str], *, timeout: float | None = None
    ) -> list[Lease | TensorholdError]:
        """Takes samples for reading only. Returns one result per sample: a lease, or the error."""
        return self._calls.lease_shared_many(refs, timeout).wait()

    read = lease_shared
    read_many = lease_shared_many

    @overload
    def get(
        self,
        what: Lease | SampleRef | str,
        names: Iterable[str] | None = ...,
        *,
        as_: Literal["tensor"] = ...,
        timeout: float | None = ...,
    ) -> dict[str, Tensor]: ...
    @overload
    def get(
        self,
        what: Lease | SampleRef | str,
        names: Iterable[str] | None = ...,
        *,
        as_: Literal["torch"],
        device: torch.device | str | int | None = ...,
        timeout: float | None = ...,
    ) -> dict[str, torch.Tensor]: ...
    @overload
    def get(
        self,
        what: Lease | SampleRef | str,
        names: Iterable[str] | None = ...,
        *,
        as_: Literal["numpy"],
        timeout: float | None = ...,
    ) -> dict[str, numpy.ndarray[Any, Any]]: ...
    @overload
    def get(
        self, what: Lease | SampleRef | str, *, into: Mapping[str, TensorLike], timeout: float | None = ...
    ) -> dict[str, Any]: ...
    def get(
        self,
        what: Lease | SampleRef | str,
        names: Iterable[str] | None = None,
        *,
        into: Mapping[str, TensorLike] | None = None,
        as_: View = "tensor",
        device: torch.device | str | int | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Gets a sample's tensors: exactly the committed bytes, or an error and no bytes.

        ``names`` selects some of the tensors. They arrive in memory of the store's pool, are seen without a copy as a
        :class:`Tensor`, a torch tensor or a numpy array, and the memory returns to the pool when the last view is gone.
        With ``into`` the bytes go into the caller's tensors, which are returned. Bytes for host memory that is not the store's are
        copied there at the end of the call; after an error the content of other tensors is unspecified.

        With ``device`` (and ``as_="torch"``) they arrive on that device: through stages in page-locked memory, on a stream of
        Tensorhold's, and the call returns when they are there.

        A reference or an id is looked up and read in one call, without a lease: the bytes that arrive are compared with
        the committed checksums, so no lease has to protect them meanwhile (a store without checksums takes a lease for
        that time). A reference of a put, a lease or a find carries the sample's description, also when it is pickled: its
        bytes move while the index is asked.
        """
        held = what.native if isinstance(what, Lease) else what
        return self._calls.get(held, names, into, as_, device, timeout).wait()

    @overload
    def get_many(
        self,
        samples: Iterable[Lease | SampleRef | str],
        names: Iterable[str] | None = ...,
        *,
        as_: Literal["tensor"] = ...,
        timeout: float | None = ...,
    ) -> list[dict[str, Tensor] | TensorholdError]: ...
    @overload
    def get_many(
        self,
        samples: Iterable[Lease | SampleRef | str],
        names: Iterable[str] | None = ...,
        *,
        as_: Literal["torch"],
        timeout: float | None = ...,
    ) -> list[dict[str, torch.Tensor] | TensorholdError]: ...
    @overload
    def get_many(
        self,
        samples: Iterable[Lease | SampleRef | str],
        names: Iterable[str] | None = ...,
        *,
        as_: Literal["numpy"],
        timeout: float | None = ...,
    ) -> list[dict[str, numpy.ndarray[Any, Any]] | TensorholdError]: ...
    def get_many(
        self,
        samples: Iterable[Lease | SampleRef | str],
        names: Iterable[str] | None = None,
        *,
        as_: View = "tensor",
        timeout: float | None = None,
    ) -> Any:
        """Gets the tensors of several samples, which share calls to the index and to the engine. Returns one result per sample:
        its tensors, or the error. ``names`` selects the same tensors of each. Together they have to fit into the pool."""
        asked = [one.native if isinstance(one, Lease) else one for one in samples]
        return self._calls.get_many(asked, names, as_, timeout).wait()

    @overload
    def lease_get(
        self, ref: SampleRef | str, names: Iterable[str] | None = ..., *, as_: Literal["tensor"] = ..., timeout: float | None = ...
    ) -> tuple[Lease, dict[str, Tensor]]: ...
    @overload
    def lease_get(
        self, ref: SampleRef | str, names: Iterable[str] | None = ..., *, as_: Literal["torch"], timeout: float | None = ...
    ) -> tuple[Lease, dict[str, torch.Tensor]]: ...
    @overload
    def lease_get(
        self, ref: SampleRef | str, names: Iterable[str] | None = ..., *, as_: Literal["numpy"], timeout: float | None = ...
    ) -> tuple[Lease, dict[str, numpy.ndarray[Any, Any]]]: ...
    def lease_get(
        self,
        ref: SampleRef | str,
        names: Iterable[str] | None = None,
        *,
        as_: View = "tensor",
        timeout: float | None = None,
    ) -> tuple[Lease, dict[str, Any]]:
        """Takes a sample for reading only and gets its tensors, side by side if the reference carries the sample's
        description: :meth:`lease_shared` and :meth:`Lease.get` in one call. If it raises, no lease is left."""
        return self._calls.lease_get(ref, names, as_, timeout).wait()

    def find(self, samples: Iterable[str], *, timeout: float | None = None) -> list[Found | None]:
        """Looks up samples without taking them; None for a sample that is not live."""
        return self._calls.find(samples, timeout).wait()

    def exists(self, samples: Iterable[str], *, timeout: float | None = None) -> list[bool]:
        """Whether samples are live, without side effects."""
        return [found is not None for found in self._calls.find(samples, timeout).wait()]

    def tiers(self, samples: Iterable[str], *, timeout: float | None = None) -> list[Tier | None]:
        """Where samples are, without side effects: ``local``, ``dram``, ``ssd`` or ``missing``; None for a sample that is
        not live."""
        return self._calls.tiers(samples, timeout).wait()

    def prefetch(self, samples: Iterable[str], *, timeout: float | None = None) -> Prefetch:
        """Brings samples that lie on SSD only to this process's memory. Returns as soon as their records are read; the
        result tells how far it is. Samples that are not live are passed over."""
        return self._calls.prefetch(samples, timeout).wait()

    def prefetch_stats(self) -> dict[str, int]:
        """Counters of prefetches in this process: their outcomes, and where gets were served from."""
        return self._core().prefetch_stats()

    def ack_many(self, leases: Iterable[Lease], *, timeout: float | None = None) -> list[Answered | TensorholdError]:
        """Acknowledges leases in one batch."""
        return self._calls.ack([lease.native for lease in leases], timeout).wait()

    def nack_many(self, leases: Iterable[Lease], *, timeout: float | None = None) -> list[Answered | TensorholdError]:
        """Hands leases back in one batch."""
        return self._calls.nack([lease.native for lease in leases], timeout).wait()

    def release_many(self, leases: Iterable[Lease], *, timeout: float | None = None) -> list[TensorholdError | None]:
        """Releases leases in one batch."""
        return self._calls.release([lease.native for lease in leases], timeout).wait()

    def renew_many(self, leases: Iterable[Lease], *, timeout: float | None = None) -> list[TensorholdError | None]:
        """Extends leases in one batch."""
        return self._calls.renew([lease.native for lease in leases], timeout).wait()

    def abort(self, sample: str, *, timeout: float | None = None) -> None:
        """Takes a sample out of circulation, whichever process made it or reads it: gets of its readers fail from now
        on."""
        checked(self._calls.abort([sample], timeout).wait())

    def abort_many(self, samples: Iterable[str], *, timeout: float | None = None) -> list[TensorholdError | None]:
        """Takes samples out of circulation. Returns one result per sample: None, or the error."""
        return self._calls.abort(samples, timeout).wait()

    def retire(self, ref: SampleRef, *, timeout: float | None = None) -> Answered:
        """Takes exactly this generation out of circulation; a later one stays."""
        return checked(self._calls.retire([ref], timeout).wait())

    def retire_many(
        self, refs: Iterable[SampleRef], *, timeout: float | None = None
    ) -> list[Answered | TensorholdError]:
        """Takes exactly these generations out of circulation. Returns one result per generation."""
        return self._calls.retire(refs, timeout).wait()

    def reopen(self, ref: SampleRef, *, timeout: float | None = None) -> None:
        """Starts another epoch of a retained sample: every group that was done with it gets it again."""
        checked(self._calls.reopen([ref], timeout).wait())

    def reopen_many(self, refs: Iterable[SampleRef], *, timeout: float | None = None) -> list[TensorholdError | None]:
        """Starts another epoch of retained samples. Returns one result per sample: None, or the error."""
        return self._calls.reopen(refs, timeout).wait()

    def dead_letters(
        self, *, after: str | None = None, limit: int = 1000, timeout: float | None = None
    ) -> tuple[list[DeadLetter], str | None]:
        """Samples that a group could not use within its attempts: a page of at most ``limit``, and where the list continues
        (give it as ``after``; None at the end). Each stays until it is requeued or dropped."""
        return self._calls.dead_letters(after, limit, timeout).wait()

    def requeue(self, ref: SampleRef, *, timeout: float | None = None) -> None:
        """Puts a dead letter back into circulation: the groups that were out of attempts get it again. Its bytes must have
        been kept: ``index={"dead_ticks": ...}``."""
        checked(self._calls.requeue([ref], timeout).wait())

    def drop_dead(self, ref: SampleRef, *, timeout: float | None = None) -> None:
        """Drops a dead letter, and its bytes if they were kept."""
        checked(self._calls.drop_dead([ref], timeout).wait())

    def announce(self, sample: str, keys: Iterable[str], nbytes: int, *, timeout: float | None = None) -> Announced:
        """Reserves a sample that another writer is about to write, so that its objects are removed if it is never
        adopted.

        Their keys begin with the store's name and a slash, or with one of its ``adopt_prefixes``; no other sample can
        have these keys until this one is freed."""
        return self._calls.announce(sample, keys, nbytes, timeout).wait()

    def adopt(
        self,
        what: Announced | str,
        tensors: Iterable[AdoptedTensor],
        *,
        groups: Iterable[str] | None = None,
        retain: bool = False,
        max_attempts: int = 3,
        timeout: float | None = None,
    ) -> SampleRef:
        """Commits objects that another writer has written: an announced sample, or, by its id, objects that already
        exist.

        Adopting the same objects again returns the live sample."""
        return self._calls.adopt(what, tensors, groups, retain, max_attempts, timeout).wait()

    def discard(self, announced: Announced, *, timeout: float | None = None) -> None:
        """Gives up an announced sample. Its writer must have stopped."""
        self._calls.discard(announced, timeout).wait()

    def empty(self, shape: Iterable[int], dtype: object, *, timeout: float | None = None) -> Tensor:
        """Memory of the pool to fill and then put. It is registered already, so putting it needs only the transfer."""
        return self._calls.empty(shape, dtype, timeout).wait()

    def empty_many(
        self, tensors: Iterable[tuple[Iterable[int], object]], *, timeout: float | None = None
    ) -> list[Tensor]:
        """:meth:`empty` for several tensors, each a shape and an element type: all of them at once, or none. Allocated
        one after the other, they could wait for memory that another thread holds while it waits for the rest of its
        own."""
        return self._calls.empty_many(tensors, timeout).wait()

    def sweep(self, *, timeout: float | None = None) -> Swept:
        """Takes back ended leases and reservations of all processes, and frees what is due."""
        return self._calls.sweep(timeout).wait()

    def sessions(self, *, timeout: float | None = None) -> list[LiveSession]:
        """The sessions of this store that are alive: which process, on which host, since when. A process that died is listed
        until its session has ended (``session_ttl``)."""
        return self._calls.sessions(timeout).wait()

    def lost(self, *, everyones: bool = False, timeout: float | None = None) -> list[SampleRef]:
        """The samples that this store has put and whose bytes were found to be gone since the last call, by any process; with
        ``everyones`` those of all producers of the store. Waits for the first one; an empty list if none came in time. The
        first call starts to listen, and tells losses of the last minute, too. Put such a sample again, if you can: consumers
        that wait for it do not get it otherwise."""
        return self._calls.lost(everyones, timeout).wait()

    def quarantined(
        self, *, after: Quarantined | None = None, limit: int = 1000, timeout: float | None = None
    ) -> list[Quarantined]:
        """The records in quarantine, which could not be parsed, in the order of their keys: at most ``limit``, starting
        behind ``after``.

        They do no harm and stay until an operator deletes them, or puts them back. See ``docs/custody.md``.
        """
        return self._calls.quarantined(after, limit, timeout).wait()

    def quarantined_bytes(self, which: Quarantined, *, timeout: float | None = None) -> bytes:
        """The unchanged bytes of a record in quarantine."""
        return self._calls.quarantined_bytes(which, timeout).wait()

    def set_budget(self, nbytes: int, *, timeout: float | None = None) -> None:
        """Changes the store's budget, for all processes. :class:`Capacity` if samples hold more than that: then nothing has
        changed. Processes that opened the store before its first budget are not bound by it."""
        self._calls.set_budget(nbytes, timeout).wait()

    def end(self, *, others: bool = False, timeout: float | None = None) -> int:
        """Ends everything that the store holds and returns once it is freed: how many samples that were. :class:`Timeout` says
        what could not be removed in time, such as a put that its process did not end; another call goes on. For a run that is
        over, or that died and will not be resumed; samples have no owner, and stay until a call says that no process needs
        them. :class:`Conflict` if another process has the store open, unless ``others``: its reads then fail."""
        return self._calls.end(others, timeout).wait()

    def drain(self, *, timeout: float | None = None) -> None:
        """Waits until every sample that was retired here is freed; :class:`Timeout` says what is left."""
        self._calls.drain(timeout).wait()

    def health(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The state of the store in this process: session, pool, pending frees, free budget, oldest lease, shared clock,
        counters, use of the engine."""
        return self._calls.health(timeout).wait()

    def estimate_bytes(self, tensors: Mapping[str, TensorLike] | Iterable[TensorSpec]) -> int:
        """The number of bytes that a sample of these tensors takes."""
        return estimate(tensors)
