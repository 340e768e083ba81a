"""Taking samples, answering for them, and what becomes of them."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import tensorhold
from conftest import OpenStore
from tensorhold import AdoptedTensor, Answered, FeatureStore, GroupProgress, Lease, SampleRef, TensorSpec
from servers import REPOSITORY, Cluster
from waiting import until

ABORTS = """
import tensorhold, json, sys
settings = json.loads(sys.argv[2])
with tensorhold.open(sys.argv[1], **settings) as store:
    store.abort("shared")
"""


def sample(n: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.full((64,), n), "y": torch.arange(n + 1)}


def engine_bytes(store: FeatureStore) -> int:
    used = store.health()["engine"]["dram_used"]
    assert isinstance(used, int)
    return used


def test_a_block_acknowledges_and_the_bytes_are_gone(store: FeatureStore) -> None:
    store.put("a", {"x": torch.zeros(1 << 20)}, groups=["g"])
    filled = engine_bytes(store)
    (lease,) = store.take("g")
    assert lease.group == "g" and lease.nbytes == 4 << 20 and lease.sample == "a"
    with lease:
        assert lease.get(as_="torch")["x"].sum() == 0
    assert lease.answered
    store.drain()
    assert engine_bytes(store) <= filled - (4 << 20)
    assert store.find(["a"]) == [None]
    assert store.take("g", timeout=0.2) == []


def test_an_exception_in_a_block_hands_the_sample_back(store: FeatureStore) -> None:
    store.put("a", sample(), groups=["g"], max_attempts=2)
    for attempt in (1, 2):
        (lease,) = store.take("g", timeout=10)
        with pytest.raises(ZeroDivisionError), lease:
            found = store.find(["a"])[0]
            assert found is not None and found.groups == {"g": GroupProgress("leased", attempt)}
            raise ZeroDivisionError
        assert lease.answered
    assert store.find(["a"]) == [None], "given up on after the last attempt"


def test_answers_say_what_became_of_the_sample(store: FeatureStore) -> None:
    ref = store.put("a", sample(), groups=["g", "h"])
    first, second = store.lease(ref, "g"), store.lease(ref, "h")
    assert first.ack() == Answered(False)
    first.renew if first.answered else pytest.fail("answered")
    second.renew()
    assert second.ack() == Answered(True, "consumed", True)
    with pytest.raises(KeyError):
        second.ack()
    with pytest.raises(KeyError):
        second.get()
    with pytest.raises(tensorhold.NotFound):
        store.lease(ref, "g")
    with pytest.raises(KeyError):
        store.get(ref)


def test_readers_use_nothing_up(open_store: OpenStore) -> None:
    one, two = open_store(), open_store()
    ref = one.put("a", sample(3), groups=["g"])
    with one.read(ref) as mine, two.read("a") as theirs:
        assert mine.group is None and theirs.ref == ref and mine.token != theirs.token
        found = one.find(["a", "b"])
        assert found[1] is None and found[0] is not None
        assert (found[0].ref, found[0].readers, found[0].retain) == (ref, 2, False)
        assert found[0].tensors == (TensorSpec("x", "int64", (64,)), TensorSpec("y", "int64", (4,)))
        assert found[0].nbytes == one.estimate_bytes(sample(3)) == one.estimate_bytes(found[0].tensors)
    assert mine.answered and theirs.answered
    again = one.find(["a"])[0]
    assert again is not None and again.readers == 0 and again.groups["g"].state == "waiting"


def test_the_last_reader_that_uses_a_sample_up_ends_it(open_store: OpenStore) -> None:
    one, other = open_store(), open_store()
    ref, grouped = one.put("used", {"x": b"1"}, groups=()), one.put("grouped", {"x": b"1"}, groups=["g"])
    first, last = one.lease_shared(ref), other.lease_shared(ref)
    assert not first.use_up().retired and first.answered
    with pytest.raises(tensorhold.Fenced):
        first.use_up()
    assert last.get()["x"].tobytes() == b"1"
    ended = last.use_up()
    assert ended.retired and ended.free
    with pytest.raises(tensorhold.NotFound):
        one.lease_shared(ref)
    assert not one.lease_shared(grouped).use_up().retired, "its group has yet to use it"



def test_many_answers_at_once(store: FeatureStore) -> None:
    refs = [store.put(f"s{n}", sample(n), groups=["g"]) for n in range(4)]
    leases = store.lease_many([*refs, SampleRef("none", 1)], "g")
    error = leases.pop()
    assert isinstance(error, tensorhold.NotFound)
    held = [lease for lease in leases if isinstance(lease, Lease)]
    assert len(held) == 4
    assert store.renew_many(held) == [None] * 4
    assert [isinstance(a, Answered) and a.retired for a in store.ack_many(held[:2])] == [True, True]
    assert [isinstance(a, Answered) and a.retired for a in store.nack_many(held[2:3])] == [False]
    assert store.release_many(held[3:]) == [None]
    assert isinstance(store.ack_many(held[:1])[0], tensorhold.Fenced)
    assert sorted(lease.sample for lease in store.take("g", 10)) == ["s2", "s3"]


def test_a_dropped_lease_is_let_go_of(store: FeatureStore) -> None:
    store.put("a", sample(), groups=["g"])
    (lease,) = store.take("g")
    del lease
    assert [lease.sample for lease in store.take("g", timeout=10)] == ["a"]


def test_a_retained_sample_comes_again(store: FeatureStore) -> None:
    ref = store.put("a", sample(), groups=["g"], retain=True)
    for _ in range(3):
        (lease,) = store.take("g", timeout=10)
        assert lease.ref == ref and lease.ack() == Answered(False)
        store.reopen(ref)
    assert store.retire(ref).reason == "aborted"
    assert isinstance(store.reopen_many([ref])[0], tensorhold.TensorholdError)
    assert isinstance(store.retire_many([ref])[0], tensorhold.NotFound)


def test_a_second_put_takes_the_place_of_the_first(store: FeatureStore) -> None:
    first = store.put("a", sample(1), groups=())
    second = store.put("a", sample(2), groups=())
    assert second > first
    assert store.get("a", as_="torch")["x"][0] == 2
    with pytest.raises(KeyError):
        store.get(first)


def test_an_abort_by_another_process_makes_gets_fail(store: FeatureStore, cluster: Cluster, store_name: str) -> None:
    import json

    store.put("shared", sample(), groups=["g"])
    (lease,) = store.take("g")
    lease.get()
    command = [sys.executable, "-c", ABORTS, store_name, json.dumps(cluster.settings())]
    subprocess.run(command, check=True, timeout=60, env={"PYTHONPATH": str(REPOSITORY / "python")})
    with pytest.raises(tensorhold.Fenced):
        lease.get()
    with pytest.raises(KeyError):
        store.get("shared")
    with pytest.raises(tensorhold.NotFound):
        store.abort("shared")
    assert [type(error) for error in store.abort_many(["shared", "never"])] == [tensorhold.NotFound] * 2
    lease.release()
    store.sweep()
    store.drain()


def test_what_somebody_else_wrote_is_adopted(store: FeatureStore, store_name: str) -> None:
    donor = store.put("donor", {"x": torch.arange(100)}, groups=())
    # Objects of our own serve as another writer's: only Tensorhold recognizes their keys, by their form.
    announced = store.announce("theirs", [f"{store_name}/k1", f"{store_name}/k2"], 800)
    assert announced.ref.sample == "theirs" and announced.keys == [f"{store_name}/k1", f"{store_name}/k2"]
    tensor = AdoptedTensor(TensorSpec("x", "int64", (100,)), f"{store_name}/k1")
    with pytest.raises(tensorhold.NotFound, match="does not exist"):
        store.adopt(announced, [tensor], groups=())
    with pytest.raises(tensorhold.Invalid, match="announce"):
        store.adopt(announced, [AdoptedTensor(tensor.spec, "stranger")], groups=())
    with pytest.raises(tensorhold.NotFound):
        store.adopt("now", [tensor], groups=())
    store.discard(announced)
    store.drain()
    assert store.find(["theirs", "donor"])[1] is not None and donor.generation > 0


def test_adopted_bytes_come_out(cluster: Cluster, store: FeatureStore, store_name: str) -> None:
    from mooncake.store import MooncakeDistributedStore

    settings = cluster.settings()
    writer = MooncakeDistributedStore()
    assert writer.setup("127.0.0.1", settings["metadata"], 0, 16 << 20, "tcp", "", settings["master"]) == 0
    try:
        payload = torch.arange(100).numpy().tobytes()
        announced = store.announce("theirs", [f"{store_name}/x"], len(payload))
        assert writer.put(f"{store_name}/x", payload) == 0
        tensors = [AdoptedTensor(TensorSpec("x", "int64", (100,)), f"{store_name}/x")]
        ref = store.adopt(announced, tensors, groups=["g"])
        assert ref == announced.ref
        (lease,) = store.take("g")
        with lease:
            assert torch.equal(lease.get(as_="torch")["x"], torch.arange(100))
        store.drain()
        assert writer.is_exist(f"{store_name}/x") == 0
        assert writer.put(f"{store_name}/y", payload) == 0
        now = [AdoptedTensor(TensorSpec("x", "int64", (100,)), f"{store_name}/y")]
        assert torch.equal(store.get(store.adopt("now", now, groups=()), as_="torch")["x"], torch.arange(100))
        # The same client, lent to a store of ours.
        with tensorhold.open(store_name, **settings, client=writer, sweep_every=None) as over:
            assert torch.equal(over.get("now", as_="torch")["x"], torch.arange(100))
            with pytest.raises(TypeError, match="client"):
                pickle.dumps(over)
        over_gone = store.health()
        assert over_gone["session"] is not None
    finally:
        writer.close()


def test_sweeps_and_health_are_told(store: FeatureStore) -> None:
    swept = store.sweep()
    assert swept.failed == 0 and isinstance(swept.more, bool)
    health: dict[str, Any] = store.health()
    assert health["session"] > 0 and health["counters"]["sweeps"] == 1
    assert health["engine"]["dram_capacity"] > 0 and health["pending_frees"] == 0


def test_leases_are_not_pickled_and_errors_have_facts(store: FeatureStore) -> None:
    store.put("a", sample(), groups=())
    with store.read("a") as lease, pytest.raises(TypeError, match="lease.ref"):
        pickle.dumps(lease)
    with pytest.raises(tensorhold.NotFound) as caught:
        store.read("b")
    assert caught.value.facts["sample"] == "b" and caught.value.retry == "never"
    with pytest.raises(tensorhold.Invalid):
        store.put("x" * 300, sample(), groups=())
    with pytest.raises(tensorhold.Invalid, match="group"):
        store.put("a", sample(), groups=["no spaces"])


def test_over_budget_is_a_memory_error(open_store: OpenStore) -> None:
    store = open_store(budget=1 << 20)
    store.put("fits", {"x": bytes(900 << 10)}, groups=())
    with pytest.raises(MemoryError):
        store.put("more", {"x": bytes(900 << 10)}, groups=(), timeout=1)
    store.abort("fits")
    store.put("more", {"x": bytes(900 << 10)}, groups=(), timeout=20)


def test_a_budget_is_changed_and_serves_who_waits(open_store: OpenStore) -> None:
    store, other = open_store(budget=1 << 20), open_store()
    store.put("first", {"x": bytes(900 << 10)}, groups=())
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.put, "second", {"x": bytes(900 << 10)}, groups=(), timeout=20)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=1)
        store.set_budget(2 << 20)
        waiting.result(timeout=10)
    with pytest.raises(tensorhold.Capacity, match="hold more"):
        store.set_budget(1 << 20)
    store.abort_many(["first", "second"])
    store.drain()
    store.set_budget(1 << 20)
    with pytest.raises(tensorhold.Capacity, match="whole budget"):
        store.put("large", {"x": bytes((1 << 20) + 1)}, groups=(), timeout=5)


def test_sessions_say_who_they_are(open_store: OpenStore) -> None:
    begun = time.time()
    first, second = open_store(role="producer"), open_store(role="trainer-3")
    for store in (first, second):
        store.put("s", {"t": b"x"}, groups=())  # a store opens its session when it is first used
    sessions = first.sessions()
    assert sorted(one.role for one in sessions) == ["producer", "trainer-3"]
    for one in sessions:
        assert (one.pid, one.host, one.version) == (os.getpid(), socket.gethostname(), tensorhold.version())
        assert "pytest" in one.program or "__main__" in one.program
        assert begun - 60 < one.started < time.time() + 60
    second.close()
    assert [one.role for one in first.sessions()] == ["producer"]
    with pytest.raises(tensorhold.Conflict, match=f"{os.getpid()} on {socket.gethostname()}"):
        open_store(role="other").end()


def test_a_dead_letter_is_requeued_or_dropped(open_store: OpenStore) -> None:
    store = open_store(index={"dead_ticks": 600})
    for name in ("back", "away"):
        store.put(name, {"t": b"bytes of " + name.encode()}, groups=["trainers", "others"], max_attempts=1)
    for lease in store.take("others", 2):
        lease.ack()
    for lease in store.take("trainers", 2):
        lease.nack()
    letters, more = store.dead_letters()
    assert more is None
    assert [(one.ref.sample, one.kept, one.out_of_attempts) for one in letters] == [
        ("away", True, ("trainers",)),
        ("back", True, ("trainers",)),
    ]
    assert letters[0].attempts == {"trainers": 1, "others": 1}
    assert time.time() - 60 < letters[0].retired < time.time() + 60
    assert letters[0].retired_by == store.sessions()[0].session
    first, after = store.dead_letters(limit=1)
    assert len(first) == 1 and after is not None and len(store.dead_letters(after=after)[0]) == 1
    away, back = letters
    store.requeue(back.ref)
    (lease,) = store.take("trainers")
    assert bytes(lease.get()["t"].numpy()) == b"bytes of back"
    lease.ack()
    assert store.take("others", timeout=0.2) == []
    store.drop_dead(away.ref)
    with pytest.raises(tensorhold.NotFound):
        store.requeue(away.ref)
    store.drain()
    assert store.dead_letters() == ([], None)


def test_a_take_for_a_group_that_no_sample_is_for_says_so_once(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    said = "check its name"

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if said in record.getMessage()]

    # A consumer that comes before the first producer is told nothing.
    assert store.take("trainer", timeout=2.5) == [] and lines() == []
    for n in range(3):
        store.put(f"s{n}", {"x": b"1"}, groups=["trainers", "evaluators"])
    for _ in range(3):  # short takes count together
        assert store.take("trainer", timeout=2.5) == []
    until("it is said", lambda: bool(lines()), 10.0)
    assert store.take("trainer", timeout=5) == []
    (line,) = lines()
    assert "trainer" in line and "evaluators, trainers" in line
    # A group that has used all of its samples is no stranger.
    for lease in store.take("evaluators", 3):
        lease.ack()
    while leases := store.take("evaluators", 3, timeout=3):
        for lease in leases:
            lease.ack()
    assert len(lines()) == 1


def test_a_put_says_which_groups_use_the_sample(store: FeatureStore) -> None:
    with pytest.raises(tensorhold.Invalid, match=r'say which groups.*groups=\["trainers"\].*groups=\(\)'):
        store.put("s", {"x": b"1"})
    with pytest.raises(tensorhold.Invalid, match="say which groups"):
        store.adopt("s", [])
    with store.writer() as writer, pytest.raises(tensorhold.Invalid, match="say which groups"):
        writer.put("s", {"x": b"1"})
    (refused,) = store.put_many([tensorhold.PutItem("s", {"x": b"1"})])
    assert isinstance(refused, tensorhold.Invalid)
    assert store.find(["s"]) == [None]
    assert store.put("s", {"x": b"1"}, groups=()).sample == "s"
