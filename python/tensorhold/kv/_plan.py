"""Page keys, events and plans, as plain data; the planner that turns events into plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from tensorhold import _tensorhold

Kind = Literal["query", "prefetch", "load-back", "write-back", "backup"]
Failure = Literal["miss", "corrupt", "full", "timed-out", "cancelled", "refused", "failed"]
State = Literal[
    "Submitted",
    "Prefetching",
    "PrefetchDone",
    "Prefilling",
    "PrefillDone",
    "Decoding",
    "Draining",
    "WritingBack",
    "Retracting",
    "Retracted",
    "Aborting",
    "Finished",
]


class Rank(NamedTuple):
    """A position in one group of ranks."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Namespace:
    """Everything that a page's bytes depend on besides its tokens. Two namespaces that differ in anything share no
    object. ``dtype`` is what the elements are (``fp8_e4m3``), not the type that they are stored as (``uint8``)."""

    model: str
    weights: str = ""
    dtype: str = ""
    layout: str = ""
    group: str = "full"
    page_tokens: int = 1
    tp: Rank = Rank()
    pp: Rank = Rank()
    cp: Rank = Rank()

    def plain(self) -> _tensorhold.PlainNamespace:
        """The form that the compiled module takes."""
        return (
            self.model,
            self.weights,
            self.dtype,
            self.layout,
            self.group,
            self.page_tokens,
            self.tp,
            self.pp,
            self.cp,
        )

    def root(self) -> bytes:
        """The key that every chain starts from. It is the same on every rank."""
        return _tensorhold.namespace_root(self.plain())

    def object_name(self, key: bytes) -> str:
        """The name under which this rank stores its shard of a page."""
        return _tensorhold.object_name(self.plain(), key)


class PageKeys:
    """The chain of keys of one prompt: one for each full page. Equal keys mean equal prefixes."""

    __slots__ = ("native",)

    def __init__(self, namespace: Namespace, tokens: Sequence[int] = (), *, salt: bytes | None = None) -> None:
        """``salt`` goes into every key: for example a tenant or an adapter."""
        self.native = _tensorhold.PageKeys(namespace.plain(), salt)
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes in the next tokens. How they are split over calls does not matter."""
        self.native.extend(tokens)

    def note(self, data: bytes) -> None:
        """Adds bytes to the key of the page that the next token falls into, for example the hash of an image."""
        self.native.note(data)

    def keys(self) -> list[bytes]:
        """The keys of the full pages, by absolute page index."""
        return self.native.keys()

    @property
    def tokens(self) -> int:
        """The number of tokens taken in."""
        return self.native.tokens


class Ticket(NamedTuple):
    """One use of a request id."""

    request: int
    turn: int


class PageAt(NamedTuple):
    """A page of an operation: its position in the prompt, its key, and its places in memory."""

    at: int
    key: bytes
    host: int | None
    device: int | None


class Operation(NamedTuple):
    """An operation to carry out. Every operation gets exactly one completion from each rank."""

    id: int
    kind: Kind
    pages: list[PageAt]


class Completion(NamedTuple):
    """The one terminal event of an operation, as one rank saw it: how many pages from the start succeeded, and why not
    all."""

    operation: int
    completed: int
    failure: Failure | None = None


@dataclass(frozen=True)
class Completed:
    """An operation has ended: one completion from each rank, in the order of the ranks."""

    ranks: Sequence[Completion]


@dataclass(frozen=True)
class PrefillDone:
    """The model has computed the whole prompt."""

    ticket: Ticket


@dataclass(frozen=True)
class Reserve:
    """The model is about to write this many more tokens."""

    ticket: Ticket
    tokens: int


@dataclass(frozen=True)
class Appended:
    """The model has written these tokens."""

    ticket: Ticket
    tokens: Sequence[int]


@dataclass(frozen=True)
class Finish:
    """The request is done."""

    ticket: Ticket


@dataclass(frozen=True)
class Retract:
    """Give up the device pages, keep what was computed."""

    ticket: Ticket


@dataclass(frozen=True)
class Resume:
    """Resume a retracted request."""

    ticket: Ticket


@dataclass(frozen=True)
class Abort:
    """Give up the request."""

    ticket: Ticket


@dataclass(frozen=True)
class Clear:
    """Forget everything that is cached."""


@dataclass(frozen=True)
class NewWeights:
    """The weights have changed: keys start from this root from now on."""

    root: bytes


Event = (
    Completed | PrefillDone | Reserve | Appended | Finish | Retract | Resume | Abort | Clear | NewWeights
)


class Grant(NamedTuple):
    """A request may run: all its pages below ``cached`` hold the content that their keys name."""

    ticket: Ticket
    cached: int
    first: int
    pages: list[int]


@dataclass(frozen=True)
class Plan:
    """What to do next, in this order."""

    operations: list[Operation]
    cancel: list[int]
    ended: list[tuple[Ticket, Literal["finished", "aborted"]]]
    retracted: list[Ticket]
    grants: list[Grant]


class Pool(NamedTuple):
    """The pages of a pool: free, owned by a request or an operation, and in the index. They add up to its size."""

    free: int
    owned: int
    indexed: int


class Planner:
    """Turns events into plans. The same events in the same order give the same plans on every rank.

    ``recheck_pages``: when a request is written back, that many of its pages that the store acknowledged before are
    backed up again, because the store may have evicted them since; for one request in a step, and at no cost where the
    store still has them. 0: none."""

    __slots__ = ("native",)

    def __init__(
        self,
        namespace: Namespace,
        *,
        host_pages: int,
        device_pages: int,
        prefetch_threshold: int = 4,
        query_ticks: int = 10,
        prefetch_ticks: int = 100,
        recheck_pages: int = 256,
        ranks: int = 1,
    ) -> None:
        self.native = _tensorhold.Planner(
            namespace.root(),
            namespace.page_tokens,
            host_pages,
            device_pages,
            prefetch_threshold,
            query_ticks,
            prefetch_ticks,
            recheck_pages,
            ranks,
        )

    def submit(self, request: int, keys: PageKeys) -> Ticket:
        """Takes in a request. How long it waits for L3 counts from the next :meth:`step`."""
        return Ticket(*self.native.submit(request, keys.native))

    def on_event(self, event: Event) -> bool:
        """Takes in an event. Returns False for the completion of an operation that is not in flight. An event that does
        not fit the state raises, and changes nothing."""
        native = self.native
        match event:
            case Completed(ranks):
                return native.completed(list(ranks))
            case PrefillDone(ticket):
                return native.prefill_done(ticket)
            case Reserve(ticket, count):
                return native.reserve(ticket, count)
            case Appended(ticket, tokens):
                return native.appended(ticket, tokens)
            case Finish(ticket):
                return native.finish(ticket)
            case Retract(ticket):
                return native.retract(ticket)
            case Resume(ticket):
                return native.resume(ticket)
            case Abort(ticket):
                return native.abort(ticket)
            case Clear():
                return native.clear()
            case NewWeights(root):
                return native.new_weights(root)

    def step(self, tick: int) -> Plan:
        """The plan at ``tick``. Ticks never go back."""
        operations, cancel, ended, retracted, grants = self.native.step(tick)
        return Plan(
            [
                Operation(number, cast(Kind, kind), [PageAt(*page) for page in pages])
                for number, kind, pages in operations
            ],
            cancel,
            [(Ticket(*of), cast(Literal["finished", "aborted"], how)) for of, how in ended],
            [Ticket(*of) for of in retracted],
            [Grant(Ticket(*of), cached, first, pages) for of, cached, first, pages in grants],
        )

    def find(self, keys: PageKeys) -> tuple[int, int]:
        """The number of pages of a prompt, from its start, that are in host memory and in device memory."""
        return self.native.find(keys.native)

    @property
    def pending(self) -> bool:
        """Whether any operation is in flight."""
        return self.native.pending

    def state(self, ticket: Ticket) -> State | None:
        """The state of a request, if it has not ended."""
        return cast(State | None, self.native.state(ticket))

    def pools(self) -> tuple[Pool, Pool]:
        """The pages of the host pool and of the device pool. When nothing is pending, none is owned."""
        host, device = self.native.pools()
        return Pool(*host), Pool(*device)

    def counters(self) -> dict[str, int]:
        """The planner's counters."""
        return self.native.counters()
