"""What the client process of the alert tests does. Its functions are called from the test, one at a time.

It is a process of its own, because counts of other tests must not be in its metrics, and because labels are given to the
first 64 stores of a process only.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Final
from urllib.request import ProxyHandler, build_opener

import numpy as np

import tensorhold
import tensorhold.metrics
from tensorhold import kv

PAGE: Final = 16 << 10
SAMPLE: Final = bytes(range(256)) * 16

_settings: dict[str, Any] = {}
_stores: dict[str, tensorhold.FeatureStore] = {}
_loads: dict[str, tuple[threading.Event, list[threading.Thread]]] = {}
_server: list[tensorhold.metrics.Server] = []
_raw: list[Any] = []
_pages: list[tuple[kv.PageStore, kv.Tier, kv.Namespace, int]] = []
_memory = np.arange(4 * PAGE, dtype=np.uint8).reshape(4, PAGE)


def serve(pipe: Connection) -> None:
    """Calls what it is told to call, until nobody tells it any more."""
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(*arguments), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))


def start(settings: dict[str, Any]) -> int:
    """Begins to serve metrics, and tells where."""
    _settings.update(settings)
    _server.append(tensorhold.metrics.start_http())
    return _server[0].port


def open_store(name: str, settings: dict[str, Any]) -> None:
    """Opens a store. Its calls do not wait for long: nothing here answers late without being stopped."""
    usual = {"pool_bytes": 16 << 20, "timeout": 5.0, "features": {"loss_grace": 1.0, "call_within": 1.0}}
    _stores[name] = tensorhold.open(name, **{**_settings, **usual, **settings})


def end() -> None:
    """Ends whatever goes on."""
    for name in list(_loads):
        end_load(name)
    for store in _stores.values():
        try:
            store.close(timeout=2.0)
        except tensorhold.TensorholdError:
            pass  # its servers are broken on purpose
    _stores.clear()
    for pages, tier, _, _ in _pages:
        tier.close(2.0)
        pages.close(timeout=2.0)
    for server in _server:
        server.close()


def put(store: str, sample: str, groups: list[str], attempts: int = 3, nbytes: int = len(SAMPLE)) -> None:
    data = (SAMPLE * (nbytes // len(SAMPLE) + 1))[:nbytes]
    _stores[store].put(sample, {"x": data}, groups=groups, max_attempts=attempts)


def abort(store: str, sample: str) -> None:
    _stores[store].abort(sample)


def _loop(stop: threading.Event, pause: float, act: Any) -> None:
    turn = 0
    while not stop.wait(pause):
        turn += 1
        try:
            act(turn)
        except tensorhold.TensorholdError:
            pass  # what fails is counted, which is what the test is about


def _begin(name: str, acts: list[Any], pause: float) -> None:
    assert name not in _loads
    stop = threading.Event()
    threads = [threading.Thread(target=_loop, args=(stop, pause, act), daemon=True) for act in acts]
    _loads[name] = (stop, threads)
    for thread in threads:
        thread.start()


def end_load(name: str) -> None:
    stop, threads = _loads.pop(name)
    stop.set()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive(), name


def work(store: str, threads: int = 1, pause: float = 0.05) -> None:
    """Puts, takes, gets and acknowledges samples until it is ended: the ordinary life of a store."""
    opened = _stores[store]

    def life(number: int, turn: int) -> None:
        group = f"g{number}"
        opened.put(f"work-{number}-{turn}", {"x": SAMPLE}, groups=[group], timeout=2.0)
        for lease in opened.take(group, timeout=1.0):
            lease.get(timeout=2.0)
            lease.ack(timeout=2.0)

    _begin(f"work {store}", [lambda turn, number=number: life(number, turn) for number in range(threads)], pause)


def acknowledge(store: str, samples: int) -> None:
    """Puts and takes samples now, and acknowledges one after the other until it is ended."""
    opened = _stores[store]
    for at in range(samples):
        opened.put(f"ack-{at}", {"x": SAMPLE}, groups=["acks"])
    leases: list[tensorhold.Lease] = []
    while len(leases) < samples:
        leases += opened.take("acks", samples, timeout=5.0)

    def one(_: int) -> None:
        if leases:
            leases.pop().ack(timeout=2.0)

    _begin(f"acknowledge {store}", [one], 0.2)


def read_over_and_over(store: str, samples: list[str]) -> None:
    opened = _stores[store]

    def read(turn: int) -> None:
        opened.get(samples[turn % len(samples)], timeout=2.0)

    _begin(f"read {store}", [read, read], 0.05)


def wait_for_budget(store: str, nbytes: int) -> None:
    """Puts a sample for which there is no budget, and waits for it for as long as it takes."""
    opened = _stores[store]
    done = threading.Event()

    def one(_: int) -> None:
        if not done.is_set():
            opened.put("waits", {"x": bytes(nbytes)}, groups=(), timeout=20.0)
            done.set()

    _begin(f"wait {store}", [one], 0.05)


def fail(store: str, sample: str, group: str) -> None:
    """Takes a sample, and hands it back."""
    (lease,) = _stores[store].take(group, timeout=5.0)
    assert lease.ref.sample == sample
    lease.nack()


def _engine() -> Any:
    """A client of Mooncake's own, as any program on the network can have one."""
    if not _raw:
        from mooncake.store import MooncakeDistributedStore

        client = MooncakeDistributedStore()
        assert client.setup("127.0.0.1", _settings["metadata"], 0, 16 << 20, "tcp", "", _settings["master"]) == 0
        _raw.append(client)
    return _raw[0]


def objects(prefix: str) -> list[str]:
    with build_opener(ProxyHandler({})).open(f"{_settings['admin'][0]}/get_all_keys", timeout=10) as answer:
        return [key for key in answer.read().decode().splitlines() if key.startswith(prefix)]


def alter(key: str) -> None:
    """Changes a byte of an object behind Tensorhold's back."""
    raw = _engine()
    data = bytearray(raw.get(key))
    assert data, key
    data[len(data) // 2] ^= 1
    assert raw.remove(key, True) == 0
    assert raw.put(key, bytes(data)) == 0


def get_altered(store: str, sample: str) -> None:
    put(store, sample, [])
    (key,) = objects(f"{store}/{sample}/")
    alter(key)
    try:
        _stores[store].get(sample)
    except tensorhold.Corrupt:
        return
    raise AssertionError("wrong bytes were accepted")


def bring_back(store: str, sample: str) -> str:
    """An object comes back after its sample was freed, as objects do from a holder's SSD. Returns its key."""
    put(store, sample, [])
    (key,) = objects(f"{store}/{sample}/")
    abort(store, sample)
    _stores[store].drain()
    assert not objects(key)
    assert _engine().put(key, SAMPLE) == 0
    return key


def plant_ahead(key: str) -> str:
    """An object of a generation that this index has not given out: as if it was made under another one."""
    ahead = re.sub(r"/g([0-9a-f]+)-", lambda found: f"/g{int(found[1], 16) + (1 << 30):0{len(found[1])}x}-", key)
    assert ahead != key and _engine().put(ahead, SAMPLE) == 0
    return ahead


def remove_object(key: str) -> None:
    assert _engine().remove(key, True) == 0


def _serve() -> tuple[kv.PageStore, kv.Tier, kv.Namespace, int]:
    """A page store and its tier. They stay open, as those of a serving engine do."""
    if not _pages:
        settings = {name: value for name, value in _settings.items() if name != "etcd"}
        store = kv.PageStore(**settings, prefetch={})
        base = store.register(_memory).address
        namespace = kv.Namespace(model="alerts", page_tokens=4)
        tier = kv.Tier(store, namespace, host_pages=4, parts=[kv.Part(base, PAGE, PAGE)])
        _pages.append((store, tier, namespace, base))
    return _pages[0]


def pages(tokens: list[int], altered: bool) -> list[str]:
    """Two KV pages are backed up by the tier, looked for, prefetched and got. Returns how they were got."""
    store, tier, namespace, base = _serve()
    keys = kv.PageKeys(namespace, tokens).keys()[:2]
    names = [namespace.object_name(key) for key in keys]
    at = [kv.PageAt(number, key, number, None) for number, key in enumerate(keys)]
    assert tier.submit(kv.Operation(tokens[0], "backup", at), timeout=10.0) is None
    ends = time.monotonic() + 20
    while not any(isinstance(event, kv.Completion) for event in tier.wait(1.0)):
        assert time.monotonic() < ends
    if altered:
        alter(names[1])
    store.exists(names)
    store.prefetch(names).wait(5.0)
    return list(store.get(names, [base + 2 * PAGE, base + 3 * PAGE], [PAGE, PAGE]).pages)


def prefetch(store: str) -> None:
    put(store, "ahead", [])
    _stores[store].prefetch(["ahead"]).wait(5.0)
    _stores[store].get("ahead")
    abort(store, "ahead")


def health(store: str) -> dict[str, Any]:
    return dict(_stores[store].health())
