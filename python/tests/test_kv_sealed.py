"""A KV tier with a key, on a real master: no client at Mooncake's ports reads, plants, changes or guesses a page."""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorhold
from tensorhold import kv
from servers import Cluster

KEY = bytes(range(11, 43))
PAGE = 64 << 10
FOOTER = 64


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[Any]:
    """A client of the engine without any of ours: what an attacker has who reaches its ports."""
    os.environ.update(cluster.client_env)
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    assert client.setup("127.0.0.1", cluster.metadata, 0, 64 << 20, "tcp", "", cluster.master) == 0
    yield client
    client.close()


def pages(cluster: Cluster, **settings: Any) -> kv.PageStore:
    found = cluster.settings()
    del found["etcd"]
    return kv.PageStore(**found, **settings)


def object_name(page: str) -> str:
    """What ``tier/seal.rs`` says, by another program."""
    root = hmac.digest(b"tensorhold/page/1", KEY, hashlib.sha256)
    names = hmac.digest(root, b"names\x01", hashlib.sha256)
    return "kv/sealed/" + hmac.new(names, page.encode(), hashlib.sha256).hexdigest()


def place(memory: Any, at: int) -> tuple[list[int], list[int]]:
    return [memory.__array_interface__["data"][0] + at * PAGE], [PAGE]


def test_pages_of_a_tier_with_a_key(cluster: Cluster, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TIER_KEY", KEY.hex())
    memory = np.frombuffer(os.urandom(3 * PAGE), dtype=np.uint8).copy()
    names = [f"kv/test/{uuid.uuid4().hex}" for _ in range(2)]
    plain = memory.tobytes()
    with (
        pages(cluster, key="env:TEST_TIER_KEY") as ours,
        pages(cluster, key=KEY) as also,
        pages(cluster) as without,
    ):
        for store in (ours, also, without):
            store.register(memory)
        for at, name in enumerate(names):
            assert ours.put([name], *place(memory, at)).pages == ["stored"]
        one, two = map(object_name, names)
        stored = raw.get(one)
        assert len(stored) == PAGE + FOOTER and plain[:16] not in stored
        assert raw.is_exist(names[0]) == 0, "not under a name that tells its tokens"
        for store in (ours, also):
            assert store.prefix_hits(names, nbytes=PAGE) == 2
            assert store.get(names[:1], *place(memory, 2)).pages == ["loaded"]
            assert memory[2 * PAGE :].tobytes() == plain[:PAGE]
        assert without.get(names[:1], *place(memory, 2)).pages == ["miss"]

        def attack(what: bytes) -> str:
            raw.remove(one, True)
            assert raw.put(one, what) == 0
            memory[2 * PAGE :] = 7
            (outcome,) = ours.get(names[:1], *place(memory, 2)).pages
            assert (memory[2 * PAGE :] == 7).all(), "nothing of it is in our memory"
            return outcome

        flipped = bytearray(stored)
        flipped[1000] ^= 1
        planted = f"kv/test/{uuid.uuid4().hex}"
        assert without.put([planted], *place(memory, 1)).pages == ["stored"]
        assert attack(bytes(flipped)) == "corrupt"
        assert attack(raw.get(two)) == "corrupt", "another page's"
        assert attack(raw.get(planted)) == "corrupt", "a page with a checksum that fits"
        assert attack(stored[:-1]) == "wrong-length"
        assert raw.is_exist(one) == 0, "it was removed"
        assert ours.stats()["gets_corrupt"] == 3 and ours.stats()["gets_wrong_length"] == 1
        assert ours.put(names[:1], *place(memory, 0)).pages == ["stored"]
        assert ours.get(names[:1], *place(memory, 2)).pages == ["loaded"]
        assert ours.remove(names) == [True, True] and raw.is_exist(one) == raw.is_exist(two) == 0
        without.remove([planted])


@pytest.mark.parametrize("wrong", [b"hunter2", "hunter2", "env:TEST_NO_SUCH_KEY", 5])
def test_wrong_keys_are_refused_and_not_repeated(cluster: Cluster, wrong: Any) -> None:
    with pytest.raises((tensorhold.Invalid, tensorhold.NotFound)) as refused:
        pages(cluster, key=wrong)
    assert "hunter2" not in str(refused.value)


def test_a_key_needs_frames(cluster: Cluster) -> None:
    with pytest.raises(tensorhold.Invalid, match="frames"):
        pages(cluster, key=KEY, frames=0)
