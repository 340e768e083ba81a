"""The host: an asyncio server that drives a planner and a tier. What it shows, its states and what it does when something
fails are in the documentation of the package."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from examples.kv_host import model as models
from examples.kv_host.group import Alone, Diverged, Group, Report, Submission
from examples.kv_host.metrics import Cached, Metrics, Sources
from examples.kv_host.pools import Pools
from tensorhold import errors, kv

TICK_S = 0.1
"""The planner's deadlines are counted in ticks. A tick is time, not a round: rounds take as long as the model takes."""
IDLE_S = 0.02
"""The longest time between two rounds when there is nothing to run."""
QUERY_S, PREFETCH_S = 5.0, 10.0
"""How long a request waits for L3."""

HAS_PAGES = ("Prefilling", "PrefillDone", "Decoding")
GIVES_PAGES_BACK = ("Draining", "WritingBack", "Retracting", "Aborting")


class Aborted(RuntimeError):
    """The request was aborted, or its time was over."""


@dataclass(frozen=True)
class Result:
    """What a request has generated."""

    tokens: list[int]
    logits: list[torch.Tensor]
    """Those that each token was chosen from."""
    cached: Cached


@dataclass(eq=False)
class Request:
    """A request that has not ended. The planner knows its state; this is what only the host knows."""

    ticket: kv.Ticket
    prompt: list[int]
    max_tokens: int
    keys: list[bytes]
    pages: list[int] = field(default_factory=list)
    """Its device pages by their position; empty while it must not run."""
    filled: int = 0
    """For this many tokens the device pages hold KV."""
    tokens: list[int] = field(default_factory=list)
    """Generated so far. The last one has no KV yet."""
    logits: list[torch.Tensor] = field(default_factory=list)
    cached: Cached | None = None

    @property
    def is_done(self) -> bool:
        """Whether all its tokens are there. Its pages may still be on their way to host memory."""
        return len(self.tokens) == self.max_tokens

    @property
    def known(self) -> list[int]:
        """The tokens that have KV, or had it before the request was retracted."""
        return self.prompt + self.tokens[:-1]


class Pending:
    """A submitted request: await it for its :class:`Result`. Who stops waiting aborts it."""

    def __init__(self, number: int, future: asyncio.Future[Result]) -> None:
        self.id = number
        self._future = future

    def __await__(self) -> Generator[Any, None, Result]:
        return self._future.__await__()


class Host:
    """Serves requests on one rank. ``async with`` starts it, and ends it when all that was begun has ended."""

    def __init__(
        self,
        store: kv.PageStore,
        model: Any,
        *,
        name: str,
        group: Group | None = None,
        page_tokens: int = 8,
        host_pages: int = 128,
        device_pages: int = 64,
        end_within: float = 30.0,
    ) -> None:
        """``name`` is what the pages of this model are found by. The store stays the caller's."""
        self.group = Alone() if group is None else group
        self.model = model
        self.pools = Pools(
            model.config, page_tokens=page_tokens, host_pages=host_pages, device_pages=device_pages
        )
        self.namespace = kv.Namespace(
            name, dtype="float32", layout=self.pools.layout(), page_tokens=page_tokens, tp=self.group.tp
        )
        self.planner = kv.Planner(
            self.namespace,
            host_pages=host_pages,
            device_pages=device_pages,
            prefetch_threshold=0,
            query_ticks=round(QUERY_S / TICK_S),
            prefetch_ticks=round(PREFETCH_S / TICK_S),
            ranks=self.group.tp.size,
        )
        self.metrics = Metrics()
        self._store = store
        self._memory = store.register(self.pools.host)
        part = kv.Part(self._memory.address, self.pools.page_bytes, self.pools.page_bytes)
        self.tier = kv.Tier(store, self.namespace, host_pages=host_pages, parts=[part])
        self._device_pages = device_pages
        self._end_within = end_within
        # One thread each: all collectives come from the model's, in the same order on every rank.
        self._model_thread = ThreadPoolExecutor(1, "model")
        self._copy_thread = ThreadPoolExecutor(1, "copies")
        self._tier_thread = ThreadPoolExecutor(1, "tier")
        self._ids = itertools.count(1)
        self._arrived: deque[Submission] = deque()
        self._to_abort: list[int] = []
        self._futures: dict[int, asyncio.Future[Result]] = {}
        self._requests: dict[int, Request] = {}
        self._retracted: list[Request] = []
        self._open: dict[int, kv.Operation] = {}
        self._done: dict[int, kv.Completion] = {}
        self._sources = Sources()
        self._digest = hashlib.blake2b()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._stopping = self._ended = False
        self._started = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    # What callers use. Only on rank 0; the others follow.

    def submit(self, prompt: Sequence[int], max_tokens: int, *, timeout: float = 60.0) -> Pending:
        """Takes in a request, to be answered within ``timeout`` seconds."""
        if self.group.tp.rank != 0 or self._stopping or self._ended:
            raise RuntimeError("requests go to rank 0 of a host that runs")
        if not prompt or max_tokens < 1:
            raise ValueError("a request needs a prompt and a token to generate")
        if not all(0 <= token < self.model.config.vocab_size for token in prompt):
            raise ValueError("the model does not know a token of this prompt")
        # So that a request which is alone on the device always finds room for its next token.
        if (len(prompt) + max_tokens) // self.namespace.page_tokens + 1 > self._device_pages:
            raise ValueError("this request is larger than the device's pool of pages")
        number, loop = next(self._ids), asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        too_late = loop.call_later(timeout, self.abort, number, f"was not done within {timeout} s")

        def ended(done: asyncio.Future[Result]) -> None:
            too_late.cancel()
            if done.cancelled():
                self.abort(number)

        future.add_done_callback(ended)
        self._futures[number] = future
        self._arrived.append(Submission(number, list(prompt), max_tokens))
        self._tell()
        return Pending(number, future)

    def abort(self, number: int, why: str = "was aborted") -> None:
        """Gives a request up. Who waits for it is told at once, whatever the store and the model do; its pages are free when
        nothing uses them any more. If it has ended, nothing happens."""
        self._settle(number, Aborted(f"request {number} {why}"))
        self._to_abort.append(number)
        self._tell()

    async def drained(self, timeout: float) -> None:
        """Waits until every request has ended, and every copy and every transfer that was begun."""
        await asyncio.wait_for(self._idle.wait(), timeout)

    def generated(self, number: int) -> int:
        """How many tokens a request has so far; 0 if it is not there."""
        request = self._requests.get(number)
        return 0 if request is None else len(request.tokens)

    def digest(self) -> str:
        """A hash over all plans and all tokens so far: the same on all ranks."""
        return self._digest.hexdigest()

    async def follow(self) -> None:
        """On another rank than 0: goes on until rank 0 has ended."""
        await asyncio.wait(self._tasks[:1])  # each of its collectives has a timeout

    async def __aenter__(self) -> Host:
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._watch_tier())]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for what was begun; aborts it if it takes too long, or if the block has raised. Raises what ended the
        rounds early, if anything did. Rank 0 leaves when it is idle, and the others leave in the same round."""
        self._stopping = True
        self._tell()
        serve = self._tasks[0]
        try:
            if kind is not None or not await self._ends(serve):
                for number in list(self._futures):
                    self.abort(number)
                if not await self._ends(serve):
                    raise RuntimeError(f"{len(self._open)} operations have not ended within {self._end_within} s")
            serve.result()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.get_running_loop().run_in_executor(None, self._close)

    async def _ends(self, task: asyncio.Task[None]) -> bool:
        await asyncio.wait([task], timeout=self._end_within)
        return task.done()

    def _close(self) -> None:
        # The tier first: it answers for every operation, and then nothing uses the pools any more.
        try:
            self.tier.close(self._end_within)
        finally:
            for thread in (self._model_thread, self._copy_thread, self._tier_thread):
                thread.shutdown()
            self._store.unregister(self._memory)

    # The rounds.

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._ended:
                reports = await loop.run_in_executor(self._model_thread, self.group.exchange, self._report())
                self._take_in(reports)
                self._make_room()
                plan = self._plan(reports[0].tick)
                # Before anything is done by it: the sums within the model are collectives, too.
                if not await loop.run_in_executor(self._model_thread, self.group.agrees, self._digest.digest()):
                    raise Diverged(f"the plans or the tokens of the ranks differ in round {self.metrics.rounds}")
                work = self._carry_out(plan)
                computed = await loop.run_in_executor(self._model_thread, self._compute, work)
                for request, logits in computed:
                    self._advance(request, logits)
                self._ended = reports[0].stop
                if self._tasks[1].done():
                    self._tasks[1].result()  # nobody tells any more how operations end
                await self._pause(bool(work))
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._ended = True

    def _report(self) -> Report:
        """What this rank brings to the next round. It does not wait for anything."""
        report = Report(
            tick=int((time.monotonic() - self._started) / TICK_S),
            submissions=list(self._arrived),
            aborts=self._to_abort,
            stop=self._stopping and self._is_idle(),
            done=[self._done.get(number) for number in self._open],
        )
        self._arrived.clear()
        self._to_abort = []
        return report

    def _take_in(self, reports: Sequence[Report]) -> None:
        """What has happened since the last round, in the same order on every rank."""
        for submission in reports[0].submissions:
            keys = kv.PageKeys(self.namespace, submission.prompt)
            ticket = self.planner.submit(submission.id, keys)
            self._requests[submission.id] = Request(ticket, submission.prompt, submission.max_tokens, keys.keys())
        for number in reports[0].aborts:
            request = self._requests.get(number)
            if request is not None and not request.is_done and self._state(request) != "Aborting":
                request.pages = []
                self.planner.on_event(kv.Abort(request.ticket))
        # All ranks have the same operations open. One that has not ended everywhere waits for a later round.
        for operation, *done in list(zip(self._open.values(), *(report.done for report in reports), strict=True)):
            completions = [completion for completion in done if completion is not None]
            if len(completions) == len(reports):
                del self._open[operation.id], self._done[operation.id]
                self.planner.on_event(kv.Completed(completions))
                self._sources.note(operation, min(completion.completed for completion in completions))

    def _make_room(self) -> None:
        """Reserves the next token of every request that runs. The older one goes first; if there is no room for it, the
        youngest one that has pages gives them up, and nobody else gets any before."""
        active = [request for request in self._requests.values() if self._state(request) in HAS_PAGES]
        for request in active:
            if not request.pages or self._state(request) == "Prefilling":
                continue
            before = self.planner.pools()[1].indexed
            try:
                self.planner.on_event(kv.Reserve(request.ticket, 1))
            except errors.Capacity:
                if not any(self._state(other) in GIVES_PAGES_BACK for other in self._requests.values()):
                    self._retract(active[-1])
                return
            finally:
                self.metrics.evicted_device_pages += before - self.planner.pools()[1].indexed
        for request in self._retracted:
            if self._state(request) == "Retracted":  # and was not aborted since
                self.planner.on_event(kv.Resume(request.ticket))
        self._retracted.clear()

    def _retract(self, request: Request) -> None:
        request.pages = []
        self.metrics.retracted += 1
        self.planner.on_event(kv.Retract(request.ticket))

    def _plan(self, tick: int) -> kv.Plan:
        host, device = self.planner.pools()
        plan = self.planner.step(tick)
        host_after, device_after = self.planner.pools()
        # A step publishes nothing, so what leaves the index in it was evicted.
        self.metrics.evicted_host_pages += host.indexed - host_after.indexed
        self.metrics.evicted_device_pages += device.indexed - device_after.indexed
        self.metrics.rounds += 1
        self._digest.update(repr(plan).encode())
        return plan

    def _carry_out(self, plan: kv.Plan) -> list[Request]:
        """Begins everything that the plan says. Returns the requests that the model runs on now."""
        for operation in plan.operations:
            self._open[operation.id] = operation
            if operation.kind in ("load-back", "write-back"):
                self._copy_thread.submit(self._copy, operation, asyncio.get_running_loop())
            else:
                within = QUERY_S if operation.kind == "query" else PREFETCH_S
                refused = self.tier.submit(operation, timeout=within)
                if refused is not None:
                    self._done[operation.id] = refused
        for number in plan.cancel:
            self.tier.cancel(number)  # a copy cannot be cancelled; it ends soon by itself
        for ticket, how in plan.ended:
            del self._requests[ticket.request]
            self.metrics.aborted += how == "aborted"
        self._retracted += [self._requests[of.request] for of in plan.retracted if of.request in self._requests]
        for grant in plan.grants:
            self._granted(self._requests[grant.ticket.request], grant)
        work = [request for request in self._requests.values() if request.pages and self._has_room(request)]
        self.metrics.most_running = max(self.metrics.most_running, len(work))
        return work

    def _granted(self, request: Request, grant: kv.Grant) -> None:
        request.pages[grant.first :] = grant.pages
        if grant.first > 0:
            return  # room for more tokens
        request.filled = grant.cached * self.namespace.page_tokens
        if request.cached is None:  # otherwise it was retracted, and has found again what it had computed itself
            request.cached = self._sources.count(request.keys, grant, self.namespace.page_tokens)
            self.metrics.cached += request.cached

    def _has_room(self, request: Request) -> bool:
        return request.filled < len(request.pages) * self.namespace.page_tokens

    # On the model's thread: the event loop goes on, and changes no page of a request that runs.

    def _compute(self, work: Sequence[Request]) -> list[tuple[Request, torch.Tensor]]:
        """Runs the model once for each request: on what is not cached of its prompt, or on its last token. One after the
        other and not as one batch, because sums over other shapes would have other last bits."""
        return [(request, self._run(request)) for request in work]

    def _run(self, request: Request) -> torch.Tensor:
        sequence = request.prompt + request.tokens
        prefills = self._state(request) == "Prefilling"
        end = len(request.known) if prefills else len(sequence)
        logits = torch.empty(0)
        shape = {"prompt": len(request.prompt), "page_tokens": self.namespace.page_tokens}
        for first, last in models.spans(request.filled, end, **shape):
            past = self.pools.gather(request.pages, first)
            logits, new = models.forward(self.model, sequence[first:last], past)
            self.pools.scatter(request.pages, first, new)
        return logits

    def _advance(self, request: Request, logits: torch.Tensor) -> None:
        """Tells the planner what the model has written, and takes the next token."""
        if prefilled := self._state(request) == "Prefilling":
            written = request.known
            self.planner.on_event(kv.PrefillDone(request.ticket))
        else:
            # The token that was the last one until now: only now its KV is written.
            written = request.prompt + request.tokens
            self.planner.on_event(kv.Appended(request.ticket, request.tokens[-1:]))
        self.metrics.computed += len(written) - request.filled
        request.filled = len(written)
        if prefilled and request.tokens:
            return  # it was retracted: the token behind these is known already
        request.logits.append(logits)
        request.tokens.append(int(logits.argmax()))
        self._digest.update(repr(request.tokens).encode())
        if request.is_done:
            request.pages = []
            self.planner.on_event(kv.Finish(request.ticket))
            self._settle(request.ticket.request, Result(request.tokens, request.logits, request.cached or Cached()))

    # On the thread of the copies.

    def _copy(self, operation: kv.Operation, loop: asyncio.AbstractEventLoop) -> None:
        done = kv.Completion(operation.id, len(operation.pages))
        for copied, page in enumerate(operation.pages):
            try:
                self.pools.copy(operation, page)
            except Exception:
                # It is told like any other end. Pages from this one on do not count, and are computed.
                done = kv.Completion(operation.id, copied, "failed")
                break
        loop.call_soon_threadsafe(self._finished, done)

    # Odds and ends.

    async def _watch_tier(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for event in await loop.run_in_executor(self._tier_thread, self.tier.wait, TICK_S):
                # Advice to go on without an operation is not needed: the planner has deadlines, the same on every rank.
                if isinstance(event, kv.Completion):
                    self._finished(event)

    def _finished(self, completion: kv.Completion) -> None:
        self._done[completion.operation] = completion
        self._news.set()

    def _tell(self) -> None:
        self._idle.clear()
        self._news.set()

    async def _pause(self, worked: bool) -> None:
        if self._is_idle():
            self._idle.set()
        # A follower does not pause: it waits for rank 0 in the exchange.
        if not worked and not self._ended and self.group.tp.rank == 0:
            try:
                await asyncio.wait_for(self._news.wait(), IDLE_S)
            except asyncio.TimeoutError:
                pass  # time has passed, and that is news to the planner
            self._news.clear()

    def _is_idle(self) -> bool:
        return not (self.planner.pending or self._requests or self._arrived)

    def _state(self, request: Request) -> str | None:
        return self.planner.state(request.ticket)

    def _settle(self, number: int, result: Result | BaseException) -> None:
        future = self._futures.pop(number, None)
        if future is None or future.done():
            return  # on another rank than 0, or nobody waits any more
        if isinstance(result, Result):
            future.set_result(result)
        else:
            future.set_exception(result)

    def _fail(self, error: BaseException) -> None:
        for number in list(self._futures):
            failed = RuntimeError("the host has ended")
            failed.__cause__ = error
            self._settle(number, failed)
