"""The page store: pages by name, in and out of registered memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, cast

from tensorhold import _events, _tensorhold, _process
from tensorhold._calls import Pending
from tensorhold._tensorhold import Settling as Settling
from tensorhold._inputs import address_of, owner_of_array
from tensorhold._keys import OneKey
from tensorhold._prefetch import Prefetch
from tensorhold._secrets import Secret
from tensorhold._settings import _usual_admin, addresses
from tensorhold.errors import TensorholdError, Invalid

PutOutcome = Literal["stored", "full", "failed", "skipped"]
GetOutcome = Literal["loaded", "miss", "wrong-length", "corrupt", "failed", "skipped"]

FRAMES: Final = 4
FRAME_BYTES: Final = 8 << 20

PREFETCH: Final[Mapping[str, Any]] = {"buffer_bytes": 128 << 20, "wait_for_prefetch": 0.05}
"""What pages do differently from the defaults of prefetches."""


class Memory(NamedTuple):
    """A contiguous run of memory: its address, its length, and the object that keeps it alive."""

    address: int
    nbytes: int
    owner: object

    @staticmethod
    def of(array: Any) -> Memory:
        """The memory of a torch tensor, a numpy array or a writable buffer."""
        if hasattr(array, "data_ptr"):
            if array.device.type != "cpu" or not array.is_contiguous():
                raise Invalid("pages must lie in contiguous host memory", operation="kv.memory")
            nbytes = array.numel() * array.element_size()
            # Holds the storage, not the tensor: a tensor can be given another storage.
            return Memory(address_of(array, "memory") if nbytes else 0, nbytes, array.untyped_storage())
        if hasattr(array, "__array_interface__"):
            if not array.flags["C_CONTIGUOUS"]:
                raise Invalid("pages must lie in contiguous host memory", operation="kv.memory")
            return Memory(array.__array_interface__["data"][0], array.nbytes, owner_of_array(array))
        import ctypes

        view = memoryview(array)
        if view.readonly or not view.c_contiguous:
            raise Invalid("pages must lie in writable, contiguous host memory", operation="kv.memory")
        # The result of from_buffer keeps the buffer exported, and thereby in place.
        exported = (ctypes.c_char * view.nbytes).from_buffer(view)
        return Memory(ctypes.addressof(exported), view.nbytes, exported)


@dataclass(frozen=True)
class Hint:
    """A page that seems to exist; a get may still miss."""

    nbytes: int
    """The length of the page."""
    in_dram: bool
    """Whether a copy is in DRAM; otherwise it is on SSD only."""


@dataclass(frozen=True)
class PutReport:
    """The outcome of a put, page by page."""

    pages: list[PutOutcome]
    errors: dict[int, TensorholdError]
    """Why a page ``failed``, by its position."""
    settling: Settling

    @property
    def stored(self) -> list[bool]:
        """For each page, whether it is stored under its key."""
        return [page == "stored" for page in self.pages]


@dataclass(frozen=True)
class GetReport:
    """The outcome of a get, page by page."""

    pages: list[GetOutcome]
    errors: dict[int, TensorholdError]
    """Why a page ``failed``, by its position."""
    settling: Settling
    """Without frames: until this is settled, the memory of every page that is not loaded may still be written to and
    must not be used for anything else. With frames it is always settled."""

    @property
    def loaded(self) -> list[bool]:
        """For each page, whether its memory holds the page. The memory of the other pages holds nothing of use."""
        return [page == "loaded" for page in self.pages]

    @property
    def prefix(self) -> int:
        """How many pages from the start are loaded."""
        return next((at for at, page in enumerate(self.pages) if page != "loaded"), len(self.pages))


class PageStore:
    """Pages on a Mooncake cluster, each with its length and its checksum. May be used from many threads at once.

    Every call blocks, at most for its timeout; other Python threads run meanwhile. A page store belongs to the process
    that made it: in a forked child its calls raise :class:`~tensorhold.errors.Fenced`.

    With ``frames`` above zero, pages pass through that many buffers of the store, of ``frame_bytes`` each; a page must
    fit into one. Then the engine never gets the caller's memory, so a call that has returned touches nothing. With
    ``direct_put_bytes`` in ``pages`` the engine reads long parts of puts from where they lie, if they are in a pool of
    at least 64 such parts. With ``frames=0`` the engine moves pages from and to where they lie: check
    ``GetReport.settling`` before you reuse the memory of pages that were not loaded.
    """

    def __init__(
        self,
        *,
        master: str = "127.0.0.1:50051",
        admin: str | Sequence[str] | None = None,
        metadata: str = "P2PHANDSHAKE",
        protocol: str = "tcp",
        local_hostname: str = "127.0.0.1",
        client: object | None = None,
        frames: int = FRAMES,
        frame_bytes: int = FRAME_BYTES,
        timeout: float = 30.0,
        environment: Mapping[str, str] | None = None,
        engine: Mapping[str, Any] | None = None,
        pages: Mapping[str, Any] | None = None,
        prefetch: Mapping[str, Any] | None = None,
        key: OneKey | None = None,
    ) -> None:
        """Opens a page store. ``engine`` holds further settings of the engine, ``pages`` further settings of the store:
        ``replicas``, ``call_pages``, ``lanes``, ``streams``, ``footer_slots``, ``full_retries``, ``call_parts``,
        ``direct_put_bytes``.

        ``prefetch`` holds settings of prefetches, times in seconds: ``route`` (``buffer``: into memory of this process;
        ``promote``: by the engine, into DRAM of a holder), ``buffer_bytes``, ``keep``, ``wait_for_prefetch`` (how long a
        get waits for pages that are on their way), ``cache_for`` (how long an answer of :meth:`exists` may be used
        again), ``workers``, ``queue``, and the further ones that ``docs/ssd.md`` lists.

        With ``key`` (32 bytes, their base64 or hex text, ``env:NAME`` or ``file:PATH``; the same for all members) pages
        are encrypted and authenticated, and their names reveal nothing. It needs ``frames``."""
        settings = {
            "engine": {
                "master": master,
                "admin": list(addresses(admin)) if admin is not None else _usual_admin(master),
                "metadata": metadata,
                "local_hostname": local_hostname,
                "protocol": protocol,
                "environment": dict(environment or {}),
                **(engine or {}),
            },
            "pages": {"frames": frames, "call_bytes": frame_bytes, **(pages or {})},
        }
        if prefetch is not None:
            settings["prefetch"] = {**PREFETCH, **prefetch}
        self.frames = frames
        self.frame_bytes = frame_bytes
        self.timeout = timeout
        _events.start()
        secret = None if key is None else Secret(key).native()
        self._native = _tensorhold.open_pages(json.dumps(settings), client, timeout, secret).wait()
        _process.remember(self)

    @property
    def native(self) -> _tensorhold.Pages:
        """The handle of the compiled module."""
        return self._native

    def _within(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def register(self, memory: Any, *, timeout: float | None = None) -> Memory:
        """Registers the memory of a tensor, an array, a writable buffer, or a :class:`Memory`, so that pages may lie in
        it.

        It is kept alive until :meth:`unregister`. Memory inside a registered range is registered already.
        """
        run = memory if isinstance(memory, Memory) else Memory.of(memory)
        self._native.register(run.address, run.nbytes, run.owner, self._within(timeout))
        return run

    def unregister(self, memory: Memory) -> bool:
        """Unregisters memory. Calls in flight that use it continue with it."""
        return self._native.unregister(memory.address)

    def exists(
        self, keys: Sequence[str], *, prefetch: bool = False, timeout: float | None = None
    ) -> list[Hint | None]:
        """What is known about these pages, without side effects and without reading them. With ``prefetch``, those that
        are on SSD only are on their way to memory when it returns; :meth:`exists_and_prefetch` also tells how far."""
        if prefetch:
            return self.exists_and_prefetch(keys, timeout=timeout)[0]
        found = self._native.exists(keys, self._within(timeout))
        return [None if hint is None else Hint(*hint) for hint in found]

    def exists_and_prefetch(
        self, keys: Sequence[str], *, timeout: float | None = None
    ) -> tuple[list[Hint | None], Prefetch]:
        """What :meth:`exists` tells; and pages that are on SSD only are on their way to memory when it returns."""
        found, native = self._native.exists_and_prefetch(keys, self._within(timeout))
        return [None if hint is None else Hint(*hint) for hint in found], Prefetch(native)

    def prefetch(self, keys: Sequence[str], *, wanted: bool = False) -> Prefetch:
        """Brings pages that are on SSD only to memory. Never blocks: a thread finds out where they are. Pages that are
        ``wanted``, because a request waits for them, go before all others."""
        return Prefetch(self._native.prefetch(keys, wanted))

    def prefix_hits(
        self,
        keys: Sequence[str],
        *,
        nbytes: int | None = None,
        prefetch: bool = False,
        timeout: float | None = None,
    ) -> int:
        """The number of pages from the start that exist without a gap; with ``nbytes``, pages of exactly that length.
        With ``prefetch``, those of them that are on SSD only are on their way to memory when it returns."""
        return self._native.prefix_hits(keys, nbytes, prefetch, self._within(timeout))

    def put(
        self, keys: Sequence[str], parts: Sequence[int], sizes: Sequence[int], *, timeout: float | None = None
    ) -> PutReport:
        """Stores pages. ``parts`` and ``sizes`` are the addresses and lengths of the parts of all pages, one page after
        the other, with the same number of parts each. A key that already has a page counts as success, and no bytes
        move for it."""
        outcomes, errors, settling = self._native.put((keys, parts, sizes), self._within(timeout))
        return PutReport(cast(list[PutOutcome], outcomes), cast(dict[int, TensorholdError], dict(errors)), settling)

    def get(
        self,
        keys: Sequence[str],
        parts: Sequence[int],
        sizes: Sequence[int],
        *,
        prefix_only: bool = False,
        timeout: float | None = None,
    ) -> GetReport:
        """Loads pages, and checks the length and checksum of each. With ``prefix_only``, pages behind the first one
        that is not loaded may be skipped."""
        outcomes, errors, settling = self._native.get((keys, parts, sizes), prefix_only, self._within(timeout))
        return GetReport(cast(list[GetOutcome], outcomes), cast(dict[int, TensorholdError], dict(errors)), settling)

    def remove(self, keys: Sequence[str], *, timeout: float | None = None) -> list[bool]:
        """Removes pages by force. Returns for each whether it is gone. A reader that is reading one of them gets a
        miss."""
        return self._native.remove(keys, self._within(timeout))

    def stats(self) -> dict[str, int]:
        """Counters of this store since it was opened."""
        return self._native.stats()

    def prefetch_stats(self) -> dict[str, int]:
        """Counters of prefetches since the store was opened: their outcomes, where gets were served from
        (``gets_local``, ``gets_dram``, ``gets_ssd``, ``gets_unknown``), the requests of probes, the buffer in use."""
        return self._native.prefetch_stats()

    def close(self, *, timeout: float | None = None) -> None:
        """Releases memory and engine. Any call after that raises; closing twice does nothing."""
        self._begin_close(self._within(timeout)).wait()

    def _begin_close(self, within: float) -> Pending[None]:
        _process.forget(self)
        return Pending(self._native.close(within), lambda nothing: None)

    def __enter__(self) -> PageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
