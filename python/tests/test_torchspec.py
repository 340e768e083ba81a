"""TorchSpec's store on a real cluster. TorchSpec is not on the package index: what is tested is the surface that it calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

import tensorhold
from conftest import OpenStore
from tensorhold.torchspec import EagleOutput, EagleStore, PutsFailed
from servers import Cluster
from test_callers import idle
from test_waiting import interrupted
from waiting import until

OpenEagle = Callable[..., EagleStore]


@pytest.fixture
def open_eagle(cluster: Cluster, store_name: str) -> Iterator[OpenEagle]:
    """Opens this test's store, as often as wanted."""
    with ExitStack() as opened:

        def eagle(**settings: Any) -> EagleStore:
            usual = {"pool_bytes": 64 << 20, "sweep_every": None, **cluster.settings(), **settings}
            return opened.enter_context(EagleStore(store_name, **usual))

        yield eagle


def sample(n: int = 0) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": torch.arange(96, dtype=torch.float32).reshape(1, 8, 12) + n,
        "input_ids": torch.arange(8).unsqueeze(0) + n,
        "last_hidden_states": torch.ones(1, 8, 4, dtype=torch.bfloat16) * n,
        "target": torch.ones(1, 8, 5, dtype=torch.float16) * n,
    }


def test_a_sample_comes_back_as_it_was_stored(open_eagle: OpenEagle) -> None:
    engine, trainer = open_eagle(), open_eagle()
    engine.setup("cpu")
    given = sample(3)
    kept = {name: tensor.clone() for name, tensor in given.items()}
    stored = engine.put("k", **given)
    for tensor in given.values():
        tensor.zero_()  # the caller's memory is the caller's again
    engine.flush()
    assert stored["shapes"] == {name: tuple(tensor.shape) for name, tensor in kept.items()}
    assert stored["dtypes"]["hidden_states"] == stored["dtypes"]["target"] == torch.bfloat16
    assert stored["dtypes"]["input_ids"] == torch.int64
    got = trainer.get("k", stored["shapes"], stored["dtypes"], torch.device("cpu"))
    assert isinstance(got, EagleOutput)
    assert torch.equal(got.hidden_states, kept["hidden_states"].to(torch.bfloat16))
    assert torch.equal(got.input_ids, kept["input_ids"]) and got.input_ids_cpu is not None
    assert torch.equal(got.input_ids_cpu, kept["input_ids"])
    assert got.last_hidden_states is not None and torch.equal(got.last_hidden_states, kept["last_hidden_states"])
    assert got.target is not None and torch.equal(got.target, kept["target"].to(torch.bfloat16))


def test_some_tensors_are_optional_and_views_are_dense(open_eagle: OpenEagle) -> None:
    store = open_eagle(output=dict)
    hidden = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    stored = store.put("k", hidden.T, torch.empty(1, 0, dtype=torch.int64), None)
    store.flush()
    got = store.get("k", **stored, device="cpu")
    assert got["target"] is None and got["last_hidden_states"] is None
    assert torch.equal(got["hidden_states"], hidden.T) and got["input_ids"].shape == (1, 0)


def test_what_is_not_as_wanted_is_a_key_error(open_eagle: OpenEagle) -> None:
    store = open_eagle()
    stored = store.put("k", torch.ones(2, 3), torch.arange(2), None)
    store.flush()
    shapes, dtypes = stored["shapes"], stored["dtypes"]
    with pytest.raises(KeyError, match="without target"):
        store.get("k", {**shapes, "target": (1,)}, dtypes, "cpu")
    with pytest.raises(KeyError, match="bfloat16"):
        store.get("k", {**shapes, "hidden_states": (3, 2)}, dtypes, "cpu")
    with pytest.raises(KeyError, match="int32"):
        store.get("k", shapes, {**dtypes, "input_ids": torch.int32}, "cpu")
    with pytest.raises(KeyError):
        store.get("other", shapes, dtypes, "cpu")


def test_bytes_that_come_back_within_the_grace_are_got(open_store: OpenStore, engine: Any) -> None:
    store = open_store()
    hidden, ids = torch.ones(2, 3, dtype=torch.bfloat16), torch.arange(2)
    raw = {"hs": hidden.view(torch.uint8).numpy().tobytes(), "ids": ids.view(torch.uint8).numpy().tobytes()}
    specs = [tensorhold.TensorSpec("hs", "bfloat16", (2, 3)), tensorhold.TensorSpec("ids", "int64", (2,))]
    adopted = [tensorhold.AdoptedTensor(spec, f"{store.name}/k/{spec.name}") for spec in specs]
    for tensor in adopted:
        assert engine.put(tensor.key, raw[tensor.spec.name]) == 0
    store.adopt("k", adopted, groups=())
    gone = adopted[1].key
    assert engine.remove(gone, force=True) == 0
    back = threading.Timer(1.0, lambda: engine.put(gone, raw["ids"]))
    back.start()
    try:
        with EagleStore(store) as eagle:
            got = eagle.get("k", {"hidden_states": (2, 3), "input_ids": (2,)}, {}, "cpu")
    finally:
        back.join()
    assert torch.equal(got.input_ids, ids) and torch.equal(got.hidden_states, hidden)


def test_a_sample_that_is_replaced_under_a_get_is_read_again(
    open_eagle: OpenEagle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, trainer = open_eagle(), open_eagle()
    stored = engine.put("k", torch.ones(2, 3), torch.tensor([1]), None)
    engine.flush()
    get, calls = trainer._store.get, []

    def first_is_replaced(key: str, names: list[str], **options: Any) -> Any:
        calls.append(key)
        if len(calls) > 1:
            return get(key, names, **options)
        (found,) = trainer._store.find([key])
        assert found is not None
        engine.put("k", torch.ones(2, 3), torch.tensor([2]), None)
        engine.flush()
        return get(found.ref, names, **options)  # raises

    monkeypatch.setattr(trainer._store, "get", first_is_replaced)
    assert int(trainer.get("k", **stored, device="cpu").input_ids) == 2


def test_removal_is_for_everybody_and_twice_is_once(open_eagle: OpenEagle) -> None:
    one, two = open_eagle(), open_eagle()
    stored = one.put("k", torch.ones(2, 3), torch.arange(2), None)
    assert not one.exists("never")
    one.flush()
    assert two.exists("k")
    two.remove_eagle3_tensors("k", has_last_hidden_states=False, has_target=False)
    two.remove_eagle3_tensors("k", True, True)
    assert not one.exists("k")
    with pytest.raises(KeyError):
        one.get("k", **stored, device="cpu")


def test_deferred_removals_wait_for_the_step(open_eagle: OpenEagle) -> None:
    store = open_eagle(defer_removals=True)
    for key in ("a", "b"):
        store.put(key, torch.ones(2, 3), torch.arange(2), None)
    store.flush()
    for key in ("a", "b", "never"):
        store.remove_eagle3_tensors(key)
    assert store.exists("a") and store.exists("b")
    assert store.trained() == 2 and store.trained() == 0
    assert not store.exists("a") and not store.exists("b")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_deferred_removal_spares_a_newer_put_of_its_key(open_eagle: OpenEagle, elsewhere: bool) -> None:
    trainer = open_eagle(defer_removals=True)
    engine = open_eagle() if elsewhere else trainer
    engine.put("k", torch.ones(2, 3), torch.tensor([1]), None)
    engine.flush()
    trainer.remove_eagle3_tensors("k")
    engine.put("k", torch.ones(2, 3), torch.tensor([2]), None)
    engine.flush()
    assert trainer.trained() == 1
    got = trainer.get("k", {"hidden_states": (2, 3), "input_ids": (1,)}, {}, "cpu")
    assert int(got.input_ids) == 2


def test_only_the_removal_that_failed_is_tried_again(
    open_eagle: OpenEagle, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_eagle(defer_removals=True)
    for key in ("a", "b", "c"):
        store.put(key, torch.ones(2, 3), torch.arange(2), None)
    store.flush()
    for key in ("a", "b", "c"):
        store.remove_eagle3_tensors(key)
    retire = store._store.retire_many
    asked: list[int] = []

    def second_fails(refs: list[tensorhold.SampleRef]) -> list[Any]:
        asked.append(len(refs))
        if len(asked) > 1:
            return retire(refs)
        first, _, third = refs
        return [*retire([first]), tensorhold.Unavailable("no answer"), *retire([third])]

    monkeypatch.setattr(store._store, "retire_many", second_fails)
    with pytest.raises(tensorhold.Unavailable):
        store.trained()
    assert [store.exists(key) for key in ("a", "b", "c")] == [False, True, False]
    assert store.trained() == 1 and asked == [3, 1]
    assert not store.exists("b")


def test_a_full_store_waits_and_flush_tells_what_failed(open_eagle: OpenEagle) -> None:
    store = open_eagle(budget=1 << 20, timeout=3.0)
    hidden, ids = torch.zeros(300 << 10, dtype=torch.bfloat16), torch.arange(4)
    for key in ("a", "b"):
        store.put(key, hidden, ids, None)
    with pytest.raises(PutsFailed) as caught:
        store.flush()
    (failed,) = caught.value.errors
    assert isinstance(caught.value.errors[failed], MemoryError) and isinstance(caught.value, RuntimeError)
    assert store.exists("a") != store.exists("b")
    store.flush()
    store.remove_eagle3_tensors("a" if failed == "b" else "b")
    store.put(failed, hidden, ids, None)
    store.flush()
    assert store.exists(failed)


def test_more_under_way_than_the_pool_holds(open_eagle: OpenEagle) -> None:
    store = open_eagle(pool_bytes=8 << 20)
    hidden = torch.ones(1 << 20, dtype=torch.bfloat16)
    for n in range(12):
        store.put(f"k{n}", hidden * n, torch.tensor([n]), None)
    store.flush()
    for n in range(12):
        got = store.get(f"k{n}", {"hidden_states": (1 << 20,), "input_ids": (1,)}, {}, "cpu")
        assert int(got.input_ids) == n and float(got.hidden_states[7]) == n


class Held:
    """Holds up the first put of a store until it is let go, or a second one has passed it."""

    def __init__(self, eagle: EagleStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self.passed = threading.Event(), threading.Event(), threading.Event()
        put = eagle._store.put

        def held(key: str, tensors: Any, **more: Any) -> Any:
            if not self.begun.is_set():
                self.begun.set()
                self.go.wait(20)
                return put(key, tensors, **more)
            ref = put(key, tensors, **more)
            self.passed.set()
            return ref

        monkeypatch.setattr(eagle._store, "put", held)


def test_of_two_puts_of_one_key_the_later_call_wins(open_eagle: OpenEagle, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_eagle()
    held = Held(store, monkeypatch)
    store.put("k", torch.zeros(2), torch.tensor([1]), None)
    assert held.begun.wait(20)
    store.put("k", torch.ones(2), torch.tensor([2]), None)
    held.passed.wait(1)  # it must not happen: this shows which put wins if it does
    held.go.set()
    store.flush()
    got = store.get("k", {"hidden_states": (2,), "input_ids": (1,)}, {}, "cpu")
    assert int(got.input_ids) == 2 and float(got.hidden_states[0]) == 1.0


@pytest.mark.parametrize("deferred", [False, True])
def test_a_removal_sees_puts_that_are_under_way(
    open_eagle: OpenEagle, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    store = open_eagle(defer_removals=deferred)
    held = Held(store, monkeypatch)
    for _ in range(6):  # some of them have not begun
        store.put("k", torch.zeros(2), torch.tensor([1]), None)
    assert held.begun.wait(20)

    def remove() -> None:
        store.remove_eagle3_tensors("k")
        if deferred:
            assert store.trained() == 1

    removing = threading.Thread(target=remove)
    removing.start()
    removing.join(0.5)
    held.go.set()
    removing.join(60)
    assert not removing.is_alive()
    store.flush()
    assert not store.exists("k"), "a put that ended later has made it live again"


def test_ctrl_c_in_a_large_put_gives_it_up(open_eagle: OpenEagle) -> None:
    store = open_eagle(pool_bytes=8 << 20, budget=8 << 20)
    large, ids = torch.zeros(5 << 19, dtype=torch.bfloat16), torch.arange(4)
    store.put("first", large, ids, None)
    with interrupted(0.5), pytest.raises(KeyboardInterrupt):
        store.put("second", large, ids, None)  # there is no room for it now
    until("the put ends", lambda: idle(store._store))
    store.remove_eagle3_tensors("first")
    store.put("third", large, ids, None)
    store.flush()
    assert store.exists("third") and not store.exists("second")


def test_warming_up_leaves_nothing(open_store: OpenStore) -> None:
    store = open_store()
    with EagleStore(store) as eagle:
        eagle.warmup_rdma()
    store.drain()
    counters = store.health()["counters"]
    assert (counters["puts"], counters["gets"], counters["freed"]) == (1, 1, 1)


def test_a_store_that_is_open_already_stays_open(open_store: OpenStore) -> None:
    store = open_store()
    with EagleStore(store) as eagle:
        eagle.put("k", torch.ones(2, 3), torch.arange(2), None)
    assert store.find(["k"])[0] is not None, "closing ends what is under way"
    with pytest.raises(ValueError, match="already"):
        EagleStore(store, master="elsewhere:1")


def test_a_dead_master_is_told(cluster: Cluster, store_name: str) -> None:
    store = EagleStore(store_name, **{**cluster.settings(), "master": "127.0.0.1:1", "timeout": 3.0})
    with pytest.raises(tensorhold.TensorholdError):
        store.setup("cpu")
    store.close()
