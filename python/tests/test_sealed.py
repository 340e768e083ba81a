"""Sealed stores on a real cluster: only a process with the key gets the bytes or learns anything, and no key is
shown."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorhold
from conftest import OpenStore
from tensorhold import aio
from tensorhold.torchspec import EagleStore
from servers import Cluster

KEY = bytes(range(3, 35))
TEXT = base64.b64encode(KEY).decode()
OTHER = bytes(range(40, 72))
PLAIN = b"what nobody else may read, " * 40_000
"""More than a chunk of a seal."""


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[Any]:
    """A client of the engine without any of ours: what an attacker has who reaches its ports."""
    os.environ.update(cluster.client_env)
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    assert client.setup("127.0.0.1", cluster.metadata, 0, 64 << 20, "tcp", "", cluster.master) == 0
    yield client
    client.close()


@pytest.fixture
def objects(cluster: Cluster, store_name: str) -> Callable[[], list[str]]:
    """The objects of this test's store."""

    def listed() -> list[str]:
        with urllib.request.urlopen(f"{cluster.admin[0]}/get_all_keys", timeout=10) as answer:
            return sorted(key for key in answer.read().decode().split() if key.startswith(store_name))

    return listed


def test_who_has_the_key_gets_the_bytes(
    open_store: OpenStore, raw: Any, objects: Callable[[], list[str]]
) -> None:
    producer, consumer = open_store(key=KEY), open_store(key=TEXT)
    tensors: dict[str, Any] = {"x": torch.randn(300, 1000), "text": PLAIN, "empty": torch.empty(0, 3)}
    ref = producer.put("a", tensors, groups=["g"])
    (lease,) = consumer.take("g")
    got = lease.get()
    assert got["text"].tobytes() == PLAIN and got["empty"].nbytes == 0
    assert torch.equal(lease.get(["x"], as_="torch")["x"], tensors["x"])
    mine = torch.zeros(300, 1000)
    lease.get(into={"x": mine})
    assert torch.equal(mine, tensors["x"])
    stored = [raw.get(key) for key in objects()]
    assert sum(map(len, stored)) > len(PLAIN) and not any(b"nobody else" in one for one in stored)
    expected = tensors["x"].numpy().tobytes()[5000:5016]
    assert not any(expected in one for one in stored)
    lease.ack()
    consumer.drain()
    assert objects() == []
    with pytest.raises(KeyError):
        consumer.get(ref)


def test_what_was_changed_is_refused(open_store: OpenStore, raw: Any, objects: Callable[[], list[str]]) -> None:
    store = open_store(key=KEY)
    first = store.put("a", {"x": PLAIN, "y": PLAIN}, groups=())
    keeper = store.read(first)
    older = {key: raw.get(key) for key in objects()}
    second = store.put("a", {"x": PLAIN, "y": PLAIN}, groups=())
    x, y = sorted(set(objects()) - set(older))
    stored_x, stored_y = raw.get(x), raw.get(y)
    flipped = bytearray(stored_x)
    flipped[1000] ^= 1
    older_x = older[sorted(older)[0]]
    for what in (bytes(flipped), stored_y, older_x, stored_x[:-1], stored_x[:16]):
        raw.remove(x, True)
        assert raw.put(x, what) == 0
        into = torch.full((len(PLAIN),), 7, dtype=torch.uint8)
        with pytest.raises(tensorhold.Corrupt):
            store.get(second, into={"x": into})
        assert bool((into == 7).all()), "untouched"
        with pytest.raises(tensorhold.Corrupt):
            store.get(second)
        assert store.get(second, ["y"])["y"].tobytes() == PLAIN
    raw.remove(x, True)
    assert raw.put(x, stored_x) == 0
    assert store.get(second)["x"].tobytes() == PLAIN
    keeper.release()


def test_no_key_another_key_no_seal(open_store: OpenStore) -> None:
    open_store(key=KEY).put("sealed", {"x": PLAIN}, groups=())
    open_store().put("plain", {"x": PLAIN}, groups=())
    with pytest.raises(tensorhold.Denied, match="without a key") as refused:
        open_store().get("sealed")
    assert isinstance(refused.value, PermissionError) and refused.value.facts["key_id"] == "default"
    with pytest.raises(tensorhold.Denied, match="not the one"):
        open_store(key=OTHER).get("sealed")
    with pytest.raises(tensorhold.Denied, match="not in the keyring"):
        open_store(key=OTHER, key_id="next").get("sealed")
    with pytest.raises(tensorhold.Unsupported, match="not sealed"):
        open_store(key=KEY).get("plain")
    with pytest.raises(tensorhold.Unsupported):
        open_store(key=KEY).announce("s", ["some:object"], 10)


def test_keys_are_rotated_by_their_ids(open_store: OpenStore) -> None:
    before = open_store(key={"2026-10": KEY})
    before.put("old", {"x": b"old"}, groups=())
    both: dict[str, Any] = {"2026-10": KEY, "2026-11": OTHER}
    open_store(key=both, key_id="2026-10").put("a", {"x": b"a"}, groups=())
    after = open_store(key=both, key_id="2026-11")
    after.put("new", {"x": b"new"}, groups=())
    assert [after.get(name)["x"].tobytes() for name in ("old", "a", "new")] == [b"old", b"a", b"new"]
    with pytest.raises(tensorhold.Denied):
        before.get("new")
    assert open_store(key=OTHER, key_id="2026-11").get("new")["x"].tobytes() == b"new"


def test_keys_from_elsewhere(open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").write_bytes(KEY)
    (tmp_path / "text").write_text(KEY.hex() + "\n")
    monkeypatch.setenv("TEST_STORE_KEY", TEXT)
    open_store(key="env:TEST_STORE_KEY").put("a", {"x": b"1"}, groups=())
    for key in (f"file:{tmp_path / 'raw'}", tmp_path / "text", bytearray(KEY), memoryview(KEY), KEY.hex()):
        assert open_store(key=key).get("a")["x"].tobytes() == b"1"
    with pytest.raises(tensorhold.NotFound):
        open_store(key="env:TEST_STORE_NO_KEY")
    with pytest.raises(tensorhold.NotFound):
        open_store(key=tmp_path / "nothing")


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": b"secret but short"},
        {"key": "secret-secret-secret-secret"},
        {"key": "vault:secret"},
        {"key": {"a": KEY, "b": OTHER}},
        {"key": {"a": KEY}, "key_id": "b"},
        {"key": {}},
        {"key": 5},
        {"key_id": "secret"},
        {"key": TEXT, "key_id": TEXT},
        {"key": KEY, "features": {"stage_bytes": 1000}},
    ],
)
def test_wrong_keys_are_refused_and_not_repeated(open_store: OpenStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(tensorhold.Invalid) as refused:
        open_store(**wrong)
    told = "".join(traceback.format_exception_only(refused.value)) + json.dumps(refused.value.facts)
    assert "secret" not in told and TEXT not in told


def test_no_key_is_shown(open_store: OpenStore) -> None:
    for store in (open_store(key=KEY), open_store(key={"2026-11": TEXT})):
        shown = f"{store!r} {store.settings!r} {store.settings.keys!r} {store.settings.to_json()} {store.health()}"
        assert repr(KEY)[2:-1] not in shown and TEXT not in shown and KEY.hex() not in shown
        with pytest.raises(tensorhold.TensorholdError) as refused:
            store.get("nobody")
        assert TEXT not in repr(refused.value)


def test_a_pickled_store_takes_along_where_its_key_is(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_STORE_KEY", TEXT)
    with pytest.raises(tensorhold.Invalid, match="env:NAME"):
        pickle.dumps(open_store(key=KEY))
    store = open_store(key="env:TEST_STORE_KEY")
    store.put("a", {"x": b"1"}, groups=())
    copy = pickle.loads(pickle.dumps(store))
    assert copy.settings == store.settings
    with copy:
        assert copy.get("a")["x"].tobytes() == b"1"


def test_another_process(open_store: OpenStore, cluster: Cluster, store_name: str) -> None:
    open_store(key=KEY).put("a", {"x": torch.arange(1000)}, groups=["g"])
    program = (
        "import json, os, sys, tensorhold\n"
        "settings = json.loads(sys.argv[2])\n"
        "with tensorhold.open(sys.argv[1], key='env:THE_KEY', **settings) as store:\n"
        "    (lease,) = store.take('g')\n"
        "    with lease:\n"
        "        print(int(lease.get(as_='torch')['x'].sum()))\n"
    )
    environment = {**os.environ, "THE_KEY": TEXT, "PYTHONPATH": str(Path(tensorhold.__file__).parents[1])}
    command = [sys.executable, "-c", program, store_name, json.dumps(cluster.settings())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == sum(range(1000))
    assert TEXT not in done.stderr


async def test_asyncio(cluster: Cluster, store_name: str) -> None:
    async with await aio.open(store_name, **cluster.settings(), key=KEY, sweep_every=None) as store:
        await store.put("a", {"x": PLAIN}, groups=["g"])
        (lease,) = await store.take("g")
        async with lease:
            assert (await lease.get())["x"].tobytes() == PLAIN


def test_torchspec(cluster: Cluster, store_name: str) -> None:
    settings = {**cluster.settings(), "pool_bytes": 64 << 20, "sweep_every": None}
    hidden, ids = torch.randn(1, 8, 12).to(torch.bfloat16), torch.arange(8).unsqueeze(0)
    with EagleStore(store_name, key=KEY, **settings) as engine, EagleStore(store_name, **settings) as stranger:
        stored = engine.put("k", hidden, ids, hidden)
        engine.flush()
        got = engine.get("k", stored["shapes"], stored["dtypes"], "cpu")
        assert torch.equal(got.hidden_states, hidden) and torch.equal(got.input_ids, ids)
        with pytest.raises(PermissionError):
            stranger.get("k", stored["shapes"], stored["dtypes"], "cpu")


def test_specforge(cluster: Cluster, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("specforge", reason="the adapter is for specforge")
    from tensorhold.specforge import TensorholdFeatureStore

    settings = {**cluster.settings(), "pool_bytes": 64 << 20, "sweep_every": None}
    tensors = {"hidden_states": torch.randn(1, 8, 8), "input_ids": torch.arange(8).unsqueeze(0)}
    with (
        TensorholdFeatureStore(store_id=store_name, key=TEXT, **settings) as producer,
        TensorholdFeatureStore(store_id=store_name, **settings) as stranger,
    ):
        ref = producer.put(tensors, sample_id="s", metadata={"run_id": "r"})
        monkeypatch.setenv("TENSORHOLD_KEY", TEXT)  # as a launcher's process has it
        with TensorholdFeatureStore(store_id=store_name, **settings) as consumer:
            with pytest.raises(PermissionError):
                stranger.get(ref)
            got, handle = consumer.get(ref)
            assert all(torch.equal(got[name], tensor) for name, tensor in tensors.items())
            consumer.release(handle)
        with pytest.raises(RuntimeError, match="not sealed"):  # what a serving engine writes would not be
            producer.track_external_attempt("t", generation=1, feature_names=["hidden_states"])
