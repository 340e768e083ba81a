"""A storm of callers that leave, on real servers: takes, gets and puts that are cancelled at random moments.

Run by ``cargo xtask prove storm [--quick] [--json]``. It starts its own cluster (a master, a holder process, an etcd)
and three processes on one store with a budget:

======== ================================================================================================
sync     the blocking face; its main thread gets SIGINT at random moments (Ctrl-C)
asyncio  the asyncio face; tasks are cancelled, or run out of ``asyncio.wait_for``, at random moments
traffic  live traffic: puts, takes, gets and acknowledges, and leaves nothing
======== ================================================================================================

Meanwhile the holder is stopped and continued. Every sample that was taken and reached its caller is read, compared with
what was put, and acknowledged. At the end everything that is left is consumed, and then these are counted:

- ``wrong_bytes``: tensors that differ from what was put;
- ``lost``: samples whose put was acknowledged and that no process could consume;
- ``attempts_burnt``: attempts of samples beyond the one in which they were consumed;
- ``pool_bytes_leaked``, ``engine_bytes_leaked``, ``budget_bytes_leaked``: bytes that were not returned;
- ``leases_left``, ``operations_left``: leases still held and operations still running when no caller is active any
  more.

The last line is one JSON object. The same seed reproduces the moments, as far as threads and servers allow.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, Final

import numpy

import tensorhold
import tensorhold.aio
from tensorhold import TensorholdError
from servers import running_cluster

STORE: Final = "storm"
GROUP: Final = "trainers"
BUDGET: Final = 48 << 20
POOL: Final = 64 << 20
LONGEST: Final = 1 << 20
"""The largest tensor."""
WITHIN: Final = 30.0
KINDS: Final = ("take", "get", "put")
PAUSE_S: Final = 1.5
"""How long the holder is stopped."""


@dataclass
class Report:
    """The observations of one process."""

    cancelled: dict[str, int] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)
    """Samples whose put has returned."""
    consumed: list[str] = field(default_factory=list)
    wrong: int = 0
    burnt: int = 0
    pool_leaked: int = 0
    operations_left: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Calls that failed by themselves: while the holder is stopped, deadlines pass."""


def bytes_of(sample: str) -> numpy.ndarray[Any, Any]:
    """The content of a sample's tensor, which follows from its name."""
    source = numpy.random.default_rng([ord(char) for char in sample])
    length = int(source.integers(1, 64)) if source.random() < 0.3 else int(source.integers(1, LONGEST))
    return source.integers(0, 256, length, dtype=numpy.uint8)


def settings_of(cluster: dict[str, Any]) -> dict[str, Any]:
    return {**cluster, "budget": BUDGET, "pool_bytes": POOL, "timeout": WITHIN, "sweep_every": 1.0}


class Ledger:
    """A process's report, kept by many workers."""

    def __init__(self, name: str, seed: int, target: int) -> None:
        self.name = name
        self.random = random.Random(f"{name}/{seed}")
        self.target = target
        self.report = Report()
        self._cancelled: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._next = 0
        self.told = threading.Event()
        """Set when the parent closes this process's standard input: the process may end."""

    def listen(self) -> None:
        def until_the_end() -> None:
            sys.stdin.read()
            self.told.set()

        threading.Thread(target=until_the_end, daemon=True).start()

    def new_sample(self) -> str:
        with self._lock:
            self._next += 1
            return f"{self.name}-{self._next}"

    def acknowledged(self, sample: str) -> None:
        with self._lock:
            self.report.acknowledged.append(sample)

    def cancelled(self, kind: str) -> None:
        with self._lock:
            self._cancelled[kind] += 1

    def failed(self, error: TensorholdError) -> None:
        with self._lock:
            self._errors[f"{type(error).__name__}: {error.operation}"] += 1

    def kind(self) -> str:
        """The next kind of call: one of which too few were cancelled so far."""
        wanted = [kind for kind in KINDS if self._cancelled[kind] < self.target]
        return self.random.choice(wanted or KINDS)

    @property
    def done(self) -> bool:
        return self.told.is_set() and all(self._cancelled[kind] >= self.target for kind in KINDS)

    def moment(self) -> float:
        """How long a caller stays: often too short, sometimes long enough."""
        return self.random.choice((0.0, 0.001, 0.003, 0.01, 0.03, 0.1)) * self.random.random()

    def check(self, sample: str, got: object, attempts: int) -> None:
        """Checks a consumed sample."""
        with self._lock:
            self.report.wrong += not numpy.array_equal(numpy.asarray(got), bytes_of(sample))
            self.report.burnt += attempts - 1
            self.report.consumed.append(sample)

    def end(self, health: dict[str, Any]) -> None:
        self.report.cancelled = dict(self._cancelled)
        self.report.errors = dict(self._errors)
        self.report.pool_leaked = health["pool"]["lent"]
        self.report.operations_left = health["operations"]
        print(json.dumps(asdict(self.report)), flush=True)


def patiently(ledger: Ledger, act: Callable[[], Any], tries: int = 20) -> Any:
    """Retries an action that may have to wait for the holder."""
    for _ in range(tries - 1):
        try:
            return act()
        except TensorholdError as error:
            if isinstance(error, (tensorhold.Fenced, tensorhold.NotFound)):
                raise
            ledger.failed(error)
    return act()


def consume(ledger: Ledger, store: tensorhold.FeatureStore, lease: tensorhold.Lease) -> None:
    sample = lease.sample
    found = patiently(ledger, lambda: store.find([sample]))[0]
    got = patiently(ledger, lambda: lease.get(as_="numpy"))["x"]
    ledger.check(sample, got, found.groups[GROUP].attempts)
    del got
    patiently(ledger, lease.ack)


def settle(store: tensorhold.FeatureStore) -> dict[str, Any]:
    """The store's health once its remaining work has ended."""
    gc.collect()
    deadline = time.monotonic() + 2 * WITHIN
    while True:
        health = store.health()
        if (health["operations"], health["calls"], health["pool"]["lent"]) == (0, 0, 0) or time.monotonic() > deadline:
            return health
        time.sleep(0.05)


class Interrupts:
    """SIGINT for the main thread, at a random moment, and only while it is expected."""

    def __init__(self) -> None:
        self._armed = False
        self._after: float | None = None
        self._changed = threading.Condition()
        signal.signal(signal.SIGINT, self._interrupt)
        threading.Thread(target=self._send, daemon=True).start()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def _send(self) -> None:
        while True:
            with self._changed:
                while self._after is None:
                    self._changed.wait()
                after, self._after = self._after, None
            time.sleep(after)
            os.kill(os.getpid(), signal.SIGINT)

    @contextmanager
    def after(self, seconds: float) -> Iterator[None]:
        with self._changed:
            self._after = seconds
            self._changed.notify()
        self._armed = True
        try:
            yield
        finally:
            self._armed = False


def sync_storm(ledger: Ledger, store: tensorhold.FeatureStore) -> None:
    interrupts = Interrupts()
    kept = []
    for number in range(4):  # for gets: read by name, and no group takes them
        name = f"{ledger.name}-kept-{number}"
        kept.append(name)
        store.put(name, {"x": bytes_of(name)}, groups=())
    while not ledger.done:
        kind = ledger.kind()
        leases: list[tensorhold.Lease] = []
        try:
            if kind == "take":
                with interrupts.after(ledger.moment()):
                    leases = store.take(GROUP, ledger.random.randint(1, 3), timeout=5)
                for lease in leases:
                    consume(ledger, store, lease)
            elif kind == "get":
                name = ledger.random.choice(kept)
                into = numpy.zeros_like(bytes_of(name)) if ledger.random.random() < 0.5 else None
                with interrupts.after(ledger.moment()):
                    if into is not None:
                        got = store.get(name, into={"x": into}, timeout=10)["x"]
                    else:
                        got = store.get(name, as_="numpy", timeout=10)["x"]
                ledger.report.wrong += not numpy.array_equal(numpy.asarray(got), bytes_of(name))
                del got
            else:
                sample = ledger.new_sample()
                data = bytes_of(sample)
                with interrupts.after(ledger.moment()):
                    store.put(sample, {"x": data}, groups=[GROUP], timeout=10)
                ledger.acknowledged(sample)
        except KeyboardInterrupt:
            ledger.cancelled(kind)
            # Leases that did reach this process were assigned, and are consumed like any other.
            for lease in leases:
                consume(ledger, store, lease)
        except TensorholdError as error:
            ledger.failed(error)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in kept:
        patiently(ledger, functools.partial(store.abort, name))


async def asyncio_storm(ledger: Ledger, cluster: dict[str, Any]) -> None:
    async with await tensorhold.aio.open(STORE, **settings_of(cluster)) as store:
        kept = [f"{ledger.name}-kept-{number}" for number in range(4)]
        for name in kept:
            await store.put(name, {"x": bytes_of(name)}, groups=())
        await asyncio.gather(*(asyncio_worker(ledger, store, kept) for _ in range(6)))
        for name in kept:
            for _ in range(10):
                try:
                    await store.abort(name)
                    break
                except TensorholdError as error:
                    ledger.failed(error)
        gc.collect()
        deadline = time.monotonic() + 2 * WITHIN
        while True:
            health = await store.health()
            idle = (health["operations"], health["calls"], health["pool"]["lent"]) == (0, 0, 0)
            if idle or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
    ledger.end(health)


async def left(ledger: Ledger, call: Any) -> Any:
    """Awaits a call for a moment, then leaves it: by a timeout, or as a task that is cancelled."""
    if ledger.random.random() < 0.5:
        return await asyncio.wait_for(call, ledger.moment())
    task = asyncio.ensure_future(call)
    asyncio.get_running_loop().call_later(ledger.moment(), task.cancel)
    return await task


async def asyncio_consume(ledger: Ledger, store: tensorhold.aio.FeatureStore, lease: tensorhold.aio.Lease) -> None:
    async def patient(act: Callable[[], Any]) -> Any:
        for _ in range(19):
            try:
                return await act()
            except TensorholdError as error:
                if isinstance(error, (tensorhold.Fenced, tensorhold.NotFound)):
                    raise
                ledger.failed(error)
        return await act()

    sample = lease.sample
    found = (await patient(lambda: store.find([sample])))[0]
    got = (await patient(lambda: lease.get(as_="numpy")))["x"]
    ledger.check(sample, got, found.groups[GROUP].attempts)
    del got
    await patient(lease.ack)


async def asyncio_worker(ledger: Ledger, store: tensorhold.aio.FeatureStore, kept: list[str]) -> None:
    while not ledger.done:
        kind = ledger.kind()
        try:
            if kind == "take":
                for lease in await left(ledger, store.take(GROUP, ledger.random.randint(1, 3), timeout=5)):
                    await asyncio_consume(ledger, store, lease)
            elif kind == "get":
                name = ledger.random.choice(kept)
                got = (await left(ledger, store.get(name, as_="numpy", timeout=10)))["x"]
                ledger.report.wrong += not numpy.array_equal(got, bytes_of(name))
                del got
            else:
                sample = ledger.new_sample()
                await left(ledger, store.put(sample, {"x": bytes_of(sample)}, groups=[GROUP], timeout=10))
                ledger.acknowledged(sample)
        except TensorholdError as error:  # before the others: its deadline is a TimeoutError too
            ledger.failed(error)
        except (asyncio.CancelledError, asyncio.TimeoutError):
            ledger.cancelled(kind)


def traffic(ledger: Ledger, store: tensorhold.FeatureStore) -> None:
    """Puts and consumes until its standard input ends, and then consumes the rest."""
    stop = ledger.told

    def produce() -> None:
        while not stop.is_set():
            sample = ledger.new_sample()
            try:
                store.put(sample, {"x": bytes_of(sample)}, groups=[GROUP], timeout=10)
                ledger.acknowledged(sample)
            except TensorholdError as error:
                ledger.failed(error)
            stop.wait(0.01)

    def work() -> None:
        idle = 0
        while idle < 3:
            try:
                leases = store.take(GROUP, 2, timeout=1)
            except TensorholdError as error:
                ledger.failed(error)
                continue
            idle = idle + 1 if stop.is_set() and not leases else 0
            for lease in leases:
                consume(ledger, store, lease)

    threads = [threading.Thread(target=act) for act in (produce, work, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def child(name: str, cluster: dict[str, Any], seed: int, target: int) -> None:
    ledger = Ledger(name, seed, target)
    ledger.listen()
    if name == "asyncio":
        asyncio.run(asyncio_storm(ledger, cluster))
        return
    with tensorhold.open(STORE, **settings_of(cluster)) as store:
        (sync_storm if name == "sync" else traffic)(ledger, store)
        health = settle(store)
    ledger.end(health)


def stop_and_continue(pid: int, times: int, source: random.Random) -> None:
    """Stops the holder and lets it continue."""
    for _ in range(times):
        time.sleep(source.uniform(0.3, 1.0))
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            os.kill(pid, signal.SIGCONT)


def whole_budget_is_there(store: tensorhold.FeatureStore) -> int:
    """The number of bytes of the budget that were not returned, found by the largest sample that can be put."""
    missing, step = 0, BUDGET // 64
    while missing < BUDGET:
        data = numpy.zeros(BUDGET - missing, dtype=numpy.uint8)
        try:
            ref = store.put("whole", {"x": data}, groups=(), timeout=15)
        except TensorholdError:
            missing += step
            continue
        store.retire(ref)
        store.drain()
        return missing
    return missing


def storm(cancels: int, stops: int, seed: int) -> dict[str, Any]:
    begun = time.monotonic()
    # Cancelled calls of each kind, from each face.
    target = -(-cancels // (2 * len(KINDS)))
    with running_cluster(segment_mib=512) as cluster:
        settings = cluster.settings()
        with tensorhold.open(STORE, **settings_of(settings)) as auditor:
            command = [sys.executable, __file__, "--seed", str(seed), "--target", str(target)]
            command += ["--cluster", json.dumps(settings), "--child"]
            children = {
                name: subprocess.Popen(
                    [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
                )
                for name in ("sync", "asyncio", "traffic")
            }
            try:
                stop_and_continue(cluster.pids["holder-0"], stops, random.Random(seed))
                reports = {name: report_of(children[name]) for name in children}
            finally:
                for process in children.values():
                    if process.poll() is None:
                        process.kill()
                        process.wait()
            rest = Ledger("auditor", seed, 0)
            while leases := auditor.take(GROUP, 8, timeout=3):
                for lease in leases:
                    consume(rest, auditor, lease)
            auditor.sweep()
            auditor.drain()
            everything = [*reports.values(), rest.report]
            consumed = [sample for report in everything for sample in report.consumed]
            acknowledged = {sample for report in everything for sample in report.acknowledged}
            budget_leaked = whole_budget_is_there(auditor)
            engine = auditor.health()["engine"]
            leases_left = auditor.sweep().taken_back
            cancelled: Counter[str] = Counter()
            for report in reports.values():
                cancelled.update(report.cancelled)
            errors: Counter[str] = Counter()
            for report in everything:
                errors.update(report.errors)
    return {
        "cancelled": sum(cancelled.values()),
        **{f"cancelled_{kind}": cancelled[kind] for kind in KINDS},
        "cancelled_sync": sum(reports["sync"].cancelled.values()),
        "cancelled_asyncio": sum(reports["asyncio"].cancelled.values()),
        "holder_stopped": stops,
        "acknowledged": len(acknowledged),
        "consumed": len(set(consumed)),
        "wrong_bytes": sum(report.wrong for report in everything),
        "lost": len(acknowledged - set(consumed)),
        "twice": len(consumed) - len(set(consumed)),
        "attempts_burnt": sum(report.burnt for report in everything),
        "pool_bytes_leaked": sum(report.pool_leaked for report in everything),
        "engine_bytes_leaked": None if engine is None else engine["dram_used"],
        "budget_bytes_leaked": budget_leaked,
        "operations_left": sum(report.operations_left for report in everything),
        "leases_left": leases_left,
        "errors": dict(errors),
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
    }


def report_of(process: subprocess.Popen[str]) -> Report:
    """A child's report, which it prints at its end, after its input has ended."""
    out, _ = process.communicate(timeout=900)
    if process.returncode != 0 or not out.strip():
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    return Report(**json.loads(out.strip().rsplit("\n", 1)[-1]))


NONE: Final = (
    "wrong_bytes",
    "lost",
    "twice",
    "attempts_burnt",
    "pool_bytes_leaked",
    "engine_bytes_leaked",
    "budget_bytes_leaked",
    "operations_left",
    "leases_left",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 cancelled calls and two stops instead of 1,000 and ten")
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON object")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", choices=("sync", "asyncio", "traffic"), help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    parser.add_argument("--target", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, json.loads(options.cluster), options.seed, options.target)
        return
    figures = storm(100 if options.quick else 1000, 2 if options.quick else 10, options.seed)
    figures["holds"] = all(figures[name] == 0 for name in NONE)
    if not options.json:
        for name in NONE:
            print(f"{name:>20}: {figures[name]}")
    print(json.dumps(figures))
    sys.exit(0 if figures["holds"] else 1)


if __name__ == "__main__":
    main()
