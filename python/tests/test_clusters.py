"""An index on two etcds: a store is moved from one to the other while processes use it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorhold
from servers import Cluster
from test_command import answer, run


def test_a_store_is_moved_while_it_is_used(start_cluster: Callable[..., Cluster]) -> None:
    home = start_cluster(segment_mib=256)
    other = start_cluster(holders=0)
    store = ("--store", "run-7")
    assert answer(home, "clusters")["clusters"] == [{"cluster": "home", "endpoints": home.etcd, "open": True, "stores": []}]

    with tensorhold.open("run-7", **home.settings()) as early:
        early.put("kept", {"x": b"put before there were clusters"}, groups=["eval"])
        assert "home itself" in run(home, "clusters", "add", "b", *home.etcd, code=2)
        run(home, "clusters", "add", "b", *other.etcd)
        # It has opened the store before, and would go on where the store no longer is.
        assert "would not notice" in run(home, "move", "b", *store, code=4)

    settings = {**home.settings(), "sweep_every": 0.2}
    stop = threading.Event()
    put: list[str] = []
    used: dict[str, int] = {}
    failed: list[BaseException] = []

    def produce() -> None:
        with tensorhold.open("run-7", **settings) as producer:
            while not stop.is_set():
                name = f"sample-{len(put)}"
                producer.put(name, {"x": name.encode() * 100}, groups=["trainers"])
                put.append(name)

    def consume() -> None:
        with tensorhold.open("run-7", **settings) as consumer:
            while not (stop.is_set() and len(used) == len(put)):
                for lease in consumer.take("trainers", 4, timeout=0.5):
                    name = lease.sample
                    assert bytes(lease.get(as_="numpy")["x"]) == name.encode() * 100
                    lease.ack()
                    used[name] = used.get(name, 0) + 1

    def watched(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:  # told by the test itself
            failed.append(failure)
            stop.set()

    threads = [threading.Thread(target=watched, args=(work,)) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    moves = []
    for to in ("b", "home", "b"):
        before = len(put)
        while len(put) < before + 50 and not stop.wait(0.02):
            pass
        moves.append(answer(home, "move", to, *store))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    assert len(used) == len(put) >= 150 and set(used.values()) == {1}
    assert all(move["frozen_ms"] < 5000 for move in moves), moves

    stores = {row["cluster"]: row["stores"] for row in answer(home, "clusters")["clusters"]}
    assert stores == {"home": [], "b": ["run-7"]}
    with tensorhold.open("run-7", **home.settings()) as late:
        [lease] = late.take("eval", 1)
        assert bytes(lease.get(as_="numpy")["x"]) == b"put before there were clusters"
        lease.ack()
    # Nothing of what was used up lingers.
    assert answer(home, "status", *store)["items"][0]["samples"]["live"] == 0
    run(home, "audit", *store)
