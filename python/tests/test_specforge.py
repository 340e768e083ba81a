"""SpecForge's contract, kept by our store on a real cluster. Its base class and types are the installed ones."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import torch

pytest.importorskip("specforge", reason="the adapter is for specforge")

from specforge.runtime.contracts import FeatureHandle, FeatureSpec
from specforge.runtime.data_plane.disaggregated import AuthPolicy
from specforge.runtime.data_plane.feature_store import (
    FeatureStore,
    drain_feature_store_removals,
    drain_feature_store_sample_removals,
)
from specforge.runtime.data_plane.ref_serialization import ref_from_dict, ref_to_dict

import tensorhold
from conftest import OpenStore
from tensorhold.specforge import FeatureStoreFailure, TensorholdFeatureStore, replace_mooncake_store
from tensorhold.specforge import _refs as refs
from servers import Cluster
from waiting import until

OpenFeatures = Callable[..., TensorholdFeatureStore]

@pytest.fixture
def open_features(cluster: Cluster, store_name: str) -> Iterator[OpenFeatures]:
    """Opens this test's store for SpecForge, as often as wanted: each is a member of its own, as a process would be."""
    with ExitStack() as opened:

        def features(**settings: Any) -> TensorholdFeatureStore:
            usual = {"pool_bytes": 128 << 20, "sweep_every": None, **cluster.settings(), **settings}
            return opened.enter_context(TensorholdFeatureStore(store_id=store_name, **usual))

        yield features


@pytest.fixture
def features(open_features: OpenFeatures) -> TensorholdFeatureStore:
    return open_features()


def tensors(n: int = 0) -> dict[str, torch.Tensor]:
    hidden = torch.arange(64, dtype=torch.float32).reshape(1, 8, 8) + n
    return {"hidden_states": hidden.to(torch.bfloat16), "input_ids": torch.arange(8).unsqueeze(0) + n}


def metadata(**more: Any) -> dict[str, Any]:
    return {"run_id": "run", "source_task_id": "task", "strategy": "eagle3", "num_tokens": 8, **more}


def engine_bytes(store: TensorholdFeatureStore) -> int:
    used = store.health()["engine"]["dram_used"]
    assert isinstance(used, int)
    return used


def test_it_is_a_feature_store_and_gives_the_bytes_back(features: TensorholdFeatureStore) -> None:
    assert isinstance(features, FeatureStore)
    ref = features.put(tensors(3), sample_id="run:task/1,é", metadata=metadata(target_repr="logits"))
    assert (ref.sample_id, ref.num_tokens, ref.run_id) == ("run:task/1,é", 8, "run")
    assert ref.estimated_bytes == features.estimate_bytes(ref.feature_specs) == 64 * 2 + 8 * 8
    got, handle = features.get(ref)
    assert isinstance(handle, FeatureHandle) and ref.metadata["generation"] == refs.told(handle.generation)
    assert list(got) == ["hidden_states", "input_ids"]
    for name, tensor in tensors(3).items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor)
    only, second = features.get(ref_from_dict(json.loads(json.dumps(ref_to_dict(ref)))), names=["input_ids"])
    assert list(only) == ["input_ids"] and second.lease_token != handle.lease_token
    features.release(handle)
    features.release(second)


def test_a_target_says_how_it_is_to_be_read(features: TensorholdFeatureStore) -> None:
    meta = metadata(target_repr="pruned_logits", vocab_map_version="v7")
    ref = features.put({"target": torch.ones(2, 2)}, sample_id="a", metadata=meta)
    spec = ref.feature_specs["target"]
    assert (spec.target_repr, spec.target_meta) == ("pruned_logits", {"vocab_map_version": "v7"})


def test_views_are_put_as_what_they_show(features: TensorholdFeatureStore) -> None:
    wide = torch.arange(12).reshape(3, 4)
    weight = torch.ones(2, requires_grad=True) * 2
    ref = features.put({"t": wide.T, "w": weight, "none": torch.empty(0, 3)}, sample_id="a", metadata={})
    got, handle = features.get(ref)
    assert torch.equal(got["t"], wide.T) and torch.equal(got["w"], weight.detach()) and got["none"].shape == (0, 3)
    features.release(handle)


def test_release_ends_the_sample_and_twice_is_once(features: TensorholdFeatureStore) -> None:
    big = {"x": torch.zeros(1 << 20)}
    ref = features.put(big, sample_id="a", metadata={})
    filled = engine_bytes(features)
    _, handle = features.get(ref)
    features.release(handle)
    with pytest.raises(KeyError):
        features.get(ref)
    features.release(handle)
    features.release(FeatureHandle("a", handle.generation, "of another process"))
    assert drain_feature_store_removals(features)["release_pending"] == 0
    assert engine_bytes(features) <= filled - (4 << 20)
    assert features.health()["resident_samples"] == 0


def test_the_last_reader_ends_the_sample(features: TensorholdFeatureStore, open_features: OpenFeatures) -> None:
    other = open_features()
    ref = features.put(tensors(), sample_id="a", metadata={})
    handles = [features.get(ref)[1], features.get(ref)[1]]
    _, theirs = other.get(ref)
    features.release(handles[0])
    features.release(handles[1])
    _, again = features.get(ref)
    features.release(again)
    other.release(theirs)
    with pytest.raises(KeyError):
        other.get(ref)
    with pytest.raises(KeyError):
        features.get(ref)


def test_abort_ends_a_sample_under_its_reader(features: TensorholdFeatureStore) -> None:
    ref = features.put(tensors(), sample_id="a", metadata={})
    got, handle = features.get(ref)
    features.abort("a", reason="test")
    with pytest.raises(KeyError):
        features.get(ref)
    assert torch.equal(got["input_ids"], tensors()["input_ids"]), "what was got is the reader's own"
    features.release(handle)
    features.abort("a", reason="again")
    features.abort("never", reason="unknown")
    assert features.drain_pending_removals()["release_pending"] == 0


def test_a_stale_generation_is_refused(features: TensorholdFeatureStore) -> None:
    first = features.put(tensors(1), sample_id="a", metadata={})
    _, old = features.get(first)
    second = features.put(tensors(2), sample_id="a", metadata={})
    with pytest.raises(KeyError):
        features.get(first)
    features.release(old)  # of the older one: the newer stays
    got, handle = features.get(second)
    assert torch.equal(got["input_ids"], tensors(2)["input_ids"])
    for wrong in (
        dataclasses.replace(second, metadata={**second.metadata, "generation": 1}),
        dataclasses.replace(second, feature_store_uri=second.feature_store_uri.replace("test-", "other-")),
        dataclasses.replace(second, feature_store_uri="mooncake://", metadata={}),
    ):
        with pytest.raises(KeyError):
            features.get(wrong)
    with pytest.raises(KeyError, match="nothing"):
        features.get(second, names=["nothing"])
    features.release(handle)
    assert features.health()["active_leases"] == 0


def test_a_lease_that_ends_under_a_get_is_taken_again(
    open_features: OpenFeatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = {"session_ttl": 2.0, "tick": 0.2, "grace_ticks": 2}  # it soon ends
    features = open_features(lease_seconds=2.0, sweep_every=0.2, index=index)
    ref = features.put(tensors(3), sample_id="a", metadata={})
    lease_get, calls = features._store.lease_get, []

    def readers() -> int:
        found = features._store.find(["a"])[0]
        assert found is not None
        return found.readers

    def first_ends(what: Any, names: list[str], **options: Any) -> Any:
        calls.append(what)
        if len(calls) == 1:
            lease = features._store.lease_shared(what)
            until("the lease ends", lambda: readers() == 0)
            return lease, lease.get(names)  # raises
        return lease_get(what, names, **options)

    monkeypatch.setattr(features._store, "lease_get", first_ends)
    got, handle = features.get(ref)
    assert torch.equal(got["input_ids"], tensors(3)["input_ids"])
    assert (len(calls), features.health()["active_leases"]) == (2, 1)
    features.release(handle)


def test_a_failure_on_the_way_to_the_device_uses_nothing_up(features: TensorholdFeatureStore) -> None:
    ref = features.put(tensors(), sample_id="a", metadata={})
    with pytest.raises((RuntimeError, AssertionError)):
        features.get(ref, device="nowhere")
    _, handle = features.get(ref)
    assert features.health()["active_leases"] == 1
    features.release(handle)


def test_retained_samples_stay_until_they_are_aborted(open_features: OpenFeatures) -> None:
    producer, consumer = open_features(), open_features(retain_on_release=True)
    assert consumer.retain_on_release is True
    ref = producer.put(tensors(), sample_id="a", metadata={})
    for _ in range(3):
        got, handle = consumer.get(ref)
        consumer.release(handle, reason="loaded")
        consumer.release(handle)
    assert producer.health()["resident_samples"] == 1
    consumer.abort("a", reason="optimizer-boundary-durable-ack")
    assert drain_feature_store_sample_removals(consumer, ["a", "b"])["release_pending"] == 0
    with pytest.raises(KeyError):
        producer.get(ref)
    assert producer.health()["resident_samples"] == 0


def test_over_budget_is_a_memory_error_and_nothing_is_committed(open_features: OpenFeatures, store_name: str) -> None:
    features = open_features(max_resident_bytes=1 << 20, timeout=2.0)
    kilobytes = torch.zeros(900 << 10, dtype=torch.uint8)
    ref = features.put({"x": kilobytes}, sample_id="fits", metadata={})
    with pytest.raises(MemoryError):
        features.put({"x": kilobytes}, sample_id="more", metadata={})
    health = features.health()
    assert (health["resident_samples"], health["resident_bytes"]) == (1, 900 << 10)
    assert health["max_resident_bytes"] == 1 << 20
    _, handle = features.get(ref)
    features.release(handle)
    features.put({"x": kilobytes}, sample_id="more", metadata={})


def test_a_wrong_credential_is_a_permission_error(open_features: OpenFeatures) -> None:
    with pytest.raises(PermissionError):
        open_features(auth=AuthPolicy("secret"), credential="wrong")
    features = open_features(auth=AuthPolicy("secret"), credential="secret")
    ref = features.put(tensors(), sample_id="a", metadata={})
    assert features.health()["auth_required"] is True
    features.auth = AuthPolicy("changed")
    with pytest.raises(PermissionError):
        features.get(ref)
    with pytest.raises(PermissionError):
        features.put(tensors(), sample_id="b", metadata={})


def test_what_is_wrong_is_a_value_error(features: TensorholdFeatureStore, open_store: OpenStore) -> None:
    with pytest.raises(ValueError):
        features.put({}, sample_id="a", metadata={})
    with pytest.raises(ValueError):
        features.put(tensors(), sample_id="", metadata={})
    with pytest.raises(ValueError):
        features.drain_pending_removals(max_attempts=0)
    with pytest.raises(ValueError):
        features.drain_sample_removals(["a"], retry_interval_s=-1)
    with pytest.raises(ValueError):
        features.estimate_bytes({"x": FeatureSpec("x", (1,), "no-such-type")})
    with pytest.raises(ValueError, match="already"):
        TensorholdFeatureStore(store=open_store(), master="elsewhere:1")


def test_bytes_are_estimated_by_their_true_sizes(features: TensorholdFeatureStore) -> None:
    specs = {"a": FeatureSpec("a", (3, 5), "float64"), "b": FeatureSpec("b", (7,), "float8_e4m3fn")}
    assert features.estimate_bytes(specs) == 3 * 5 * 8 + 7
    assert features.estimate_bytes({}) == 0


def test_gc_ends_what_is_old_and_nobody_reads(open_features: OpenFeatures) -> None:
    now = [100.0]
    features = open_features(max_hold_age_s=10.0, clock=lambda: now[0])
    other = open_features()
    idle = features.put(tensors(1), sample_id="idle", metadata={})
    read_here = features.put(tensors(2), sample_id="here", metadata={})
    read_there = features.put(tensors(3), sample_id="there", metadata={})
    _, here = features.get(read_here)
    _, there = other.get(read_there)
    assert features.gc() == {"force_freed": 0, "force_freed_bytes": 0, "release_pending": 0}
    assert features.gc(now=111.0) == {"force_freed": 1, "force_freed_bytes": idle.estimated_bytes, "release_pending": 0}
    with pytest.raises(KeyError):
        features.get(idle)
    for ref, store, handle in ((read_here, features, here), (read_there, other, there)):
        _, second = store.get(ref)
        store.release(second)
        store.release(handle)
    now[0] = 200.0
    assert features.gc()["force_freed"] == 0, "they were used up"
    assert features.health()["force_freed_total"] == 1


def test_an_index_that_does_not_answer(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(segment_mib=64)
    settings = {"pool_bytes": 16 << 20, "sweep_every": None, "timeout": 3.0, **cluster.settings()}
    with TensorholdFeatureStore(store_id="run", **settings) as features:
        _, released, aborted = (features.put(tensors(n), sample_id=f"s{n}", metadata={}) for n in range(3))
        _, handle = features.get(released)
        os.kill(cluster.pids["etcd-0"], signal.SIGSTOP)
        try:
            features.release(handle)
            features.abort("s2", reason="test")
            for ref in (released, aborted):
                with pytest.raises(KeyError, match="here"):
                    features.get(ref)
            with pytest.raises(RuntimeError):
                features.put(tensors(), sample_id="s3", metadata={})
            with pytest.raises(RuntimeError, match="s2"):
                features.drain_sample_removals(["s2"], max_attempts=2, retry_interval_s=0.0)
            assert features.gc()["release_pending"] == 2
            health = features.health()
            assert health["reachable"] is False and health["release_pending"] == 2
        finally:
            os.kill(cluster.pids["etcd-0"], signal.SIGCONT)
        assert features.drain_sample_removals(["s2"])["removed"] == 1
        assert features.drain_pending_removals()["removed"] == 1
        for ref in (released, aborted):
            with pytest.raises(KeyError):
                features.get(ref)


def test_closing_settles_removals_that_are_owed_or_names_them(
    start_cluster: Callable[..., Cluster], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start_cluster(segment_mib=64)
    settings = {"pool_bytes": 16 << 20, "sweep_every": None, "timeout": 3.0, **cluster.settings()}
    one, other = (TensorholdFeatureStore(store_id="run", **settings) for _ in range(2))
    with TensorholdFeatureStore(store_id="run", **settings) as watching:
        first, second = one.put(tensors(1), sample_id="a", metadata={}), other.put(tensors(2), sample_id="b", metadata={})
        os.kill(cluster.pids["etcd-0"], signal.SIGSTOP)
        try:
            one.abort("a", reason="test")
            other.abort("b", reason="test")
            with suppress(tensorhold.TensorholdError):  # the session may not be ended either
                other.close()
            assert [record.levelname for record in caplog.records if "given up by closing" in record.getMessage()] == ["ERROR"]
        finally:
            os.kill(cluster.pids["etcd-0"], signal.SIGCONT)
        one.close()
        with pytest.raises(KeyError):
            watching.get(first)
        assert watching.get(second), "it was named, and is still there"


def test_an_engine_that_does_not_answer_is_a_runtime_error(cluster: Cluster, store_name: str) -> None:
    settings = {**cluster.settings(), "master": "127.0.0.1:1", "timeout": 3.0}
    with pytest.raises(RuntimeError) as caught:
        TensorholdFeatureStore(store_id=store_name, **settings)
    assert isinstance(caught.value, FeatureStoreFailure) and isinstance(caught.value.__cause__, tensorhold.TensorholdError)


def test_a_store_that_is_open_already_stays_open(open_store: OpenStore) -> None:
    store = open_store()
    with TensorholdFeatureStore(store=store) as features:
        assert features.store_id == store.name
        features.put(tensors(), sample_id="a", metadata={})
    assert not store.closed and store.find(["a"])[0] is not None


def test_specforge_finds_it_in_place_of_its_own(
    cluster: Cluster, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specforge.runtime.data_plane import mooncake_store

    monkeypatch.setattr(mooncake_store, "MooncakeFeatureStore", mooncake_store.MooncakeFeatureStore)
    replace_mooncake_store()
    monkeypatch.setenv("TENSORHOLD_ETCD", ",".join(cluster.etcd))
    monkeypatch.setenv("TENSORHOLD_ADMIN", ",".join(cluster.admin))
    setup = {
        "local_hostname": "127.0.0.1",
        "metadata_server": cluster.metadata,
        "master_server_addr": cluster.master,
        "protocol": "tcp",
        "rdma_devices": "",
    }
    made = mooncake_store.MooncakeFeatureStore(
        store_id=store_name,
        setup_kwargs=setup,
        auth=AuthPolicy(None),
        credential=None,
        retain_on_release=True,
    )
    with made:
        ref = made.put(tensors(), sample_id="a", metadata={})
        made.release(made.get(ref)[1])
        assert made.health()["resident_samples"] == 1
    with pytest.raises(ValueError, match="no meaning"):
        mooncake_store.MooncakeFeatureStore(setup_kwargs={"enable_ssd": True})
