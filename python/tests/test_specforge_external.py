"""Samples that a serving engine writes itself: announced, adopted, given up; driven by SpecForge's own capture adapter."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

pytest.importorskip("specforge", reason="the adapter is for specforge")

from specforge.runtime.contracts import FeatureSpec, SampleRef
from specforge.runtime.data_plane.ref_serialization import ref_from_dict, ref_to_dict

from conftest import OpenStore
from tensorhold.specforge import TensorholdFeatureStore
from tensorhold.specforge import _refs as refs
from servers import Cluster

OpenFeatures = Callable[..., TensorholdFeatureStore]
IDS = torch.arange(16).unsqueeze(0)
HIDDEN = torch.arange(64, dtype=torch.float32).reshape(1, 16, 4).to(torch.bfloat16)
NAMES = ["input_ids", "hidden_state"]


@pytest.fixture
def open_features(cluster: Cluster, store_name: str) -> Iterator[OpenFeatures]:
    with ExitStack() as opened:

        def features(**settings: Any) -> TensorholdFeatureStore:
            usual = {"pool_bytes": 64 << 20, "sweep_every": None, **cluster.settings(), **settings}
            return opened.enter_context(TensorholdFeatureStore(store_id=store_name, **usual))

        yield features


class Server:
    """Writes as SpecForge's server does: raw bytes, under keys that it is told the parts of."""

    def __init__(self, engine: Any, store_id: str) -> None:
        self.engine = engine
        self.store_id = store_id

    def key(self, sample: str, name: str, generation: int = 1) -> str:
        return f"{self.store_id}/{sample}/g{generation}/{name}"

    def capture(self, sample: str, generation: int = 1) -> SampleRef:
        for name, tensor in zip(NAMES, (IDS, HIDDEN)):
            raw = tensor.view(torch.uint8).numpy().tobytes()
            assert self.engine.put(self.key(sample, name, generation), raw) == 0
        return SampleRef(
            sample_id=sample,
            run_id="run",
            source_task_id="task",
            feature_store_uri=f"mooncake://{self.store_id}/{sample}",
            feature_keys={name: f"{sample}/{name}" for name in NAMES},
            feature_specs={
                "input_ids": FeatureSpec("input_ids", tuple(IDS.shape), "int64"),
                "hidden_state": FeatureSpec("hidden_state", tuple(HIDDEN.shape), "bfloat16"),
            },
            strategy="eagle3",
            estimated_bytes=16 * 8 + 64 * 2,
            metadata={"generation": generation},
        )

    def holds(self, sample: str, generation: int = 1) -> list[bool]:
        return [self.engine.is_exist(self.key(sample, name, generation)) == 1 for name in NAMES]


@pytest.fixture
def server(engine: Any, store_name: str) -> Server:
    return Server(engine, store_name)


def elsewhere(ref: SampleRef) -> SampleRef:
    """A reference as another process receives it."""
    return ref_from_dict(json.loads(json.dumps(ref_to_dict(ref))))


def test_what_a_server_wrote_is_got_by_the_consumer_and_removed(open_features: OpenFeatures, server: Server) -> None:
    producer, consumer = open_features(), open_features(retain_on_release=True)
    producer.track_external_attempt("a", generation=1, feature_names=NAMES)
    assert producer.health()["provisional_external"] == 1
    ref = server.capture("a")
    unadopted = elsewhere(ref)
    with pytest.raises(KeyError):
        consumer.get(unadopted)
    producer.adopt(ref)
    producer.adopt(ref)
    assert producer.health()["provisional_external"] == 0
    assert ref.metadata["generation"] == refs.told(1), "still the writer's"
    for told in (elsewhere(ref), unadopted):  # the second was sent on before it was adopted
        got, handle = consumer.get(told)
        assert torch.equal(got["input_ids"], IDS) and torch.equal(got["hidden_state"], HIDDEN)
        assert list(got) == NAMES
        consumer.release(handle)
    consumer.adopt(elsewhere(ref))
    consumer.abort("a", reason="trained")
    consumer.drain_pending_removals()
    assert server.holds("a") == [False, False]
    for store in (producer, consumer):
        with pytest.raises(KeyError):
            store.get(elsewhere(ref))
    consumer.adopt(elsewhere(ref))
    consumer.abort("a", reason="reconciled after a restart")
    assert producer.discard_external_attempts() == 0


def test_what_is_never_adopted_is_given_up(open_features: OpenFeatures, server: Server) -> None:
    producer = open_features()
    for sample in ("lost", "adopted", "unwritten"):
        producer.track_external_attempt(sample, generation=1, feature_names=NAMES)
    server.capture("lost")  # and the reply is lost
    producer.adopt(server.capture("adopted"))
    assert producer.discard_external_attempts(reason="end") == 2
    assert producer.discard_external_attempts() == 0
    producer.drain_pending_removals()
    assert server.holds("lost") == [False, False] and server.holds("adopted") == [True, True]
    assert producer.health()["provisional_external"] == 0


def test_the_same_capture_twice_is_the_same_sample(open_features: OpenFeatures, server: Server) -> None:
    producer = open_features()
    for _ in range(2):
        producer.track_external_attempt("a", generation=1, feature_names=NAMES)
    first = server.capture("a")
    producer.adopt(first)
    producer.track_external_attempt("a", generation=1, feature_names=NAMES)  # its task was given out again
    assert producer.health()["provisional_external"] == 0, "in custody already"
    again = server.capture("a")
    producer.adopt(again)
    assert again.metadata == first.metadata
    assert producer.discard_external_attempts() == 0
    producer.drain_pending_removals()
    got, handle = producer.get(again)
    assert torch.equal(got["hidden_state"], HIDDEN)
    producer.release(handle)
    producer.drain_pending_removals()
    assert server.holds("a") == [False, False]


def test_a_retry_after_an_abort_is_not_removed_with_the_first(open_features: OpenFeatures, server: Server) -> None:
    producer = open_features()
    for turn in range(10):
        producer.track_external_attempt("a", generation=1, feature_names=NAMES)
        ref = server.capture("a")
        producer.adopt(ref)
        got, handle = producer.get(ref)
        assert torch.equal(got["input_ids"], IDS)
        if turn % 2:
            producer.abort("a", reason="under its reader")
        else:
            producer.release(handle)


def test_a_later_capture_takes_the_place_of_an_earlier_one(open_features: OpenFeatures, server: Server) -> None:
    producer = open_features()
    refs = []
    for generation in (1, 2):
        producer.track_external_attempt("a", generation=generation, feature_names=NAMES)
        refs.append(server.capture("a", generation))
        producer.adopt(refs[-1])
    with pytest.raises(KeyError):
        producer.get(refs[0])
    with pytest.raises(KeyError):
        producer.get(dataclasses.replace(refs[0], metadata={"generation": 1}))
    got, handle = producer.get(dataclasses.replace(refs[1], metadata={"generation": 2}))
    assert torch.equal(got["input_ids"], IDS)
    producer.release(handle)
    producer.drain_pending_removals()
    assert server.holds("a", 1) == server.holds("a", 2) == [False, False]


def test_more_features_of_the_same_attempt(open_features: OpenFeatures, server: Server) -> None:
    producer = open_features()
    producer.track_external_attempt("a", generation=1, feature_names=NAMES[:1])
    producer.track_external_attempt("a", generation=1, feature_names=NAMES)
    producer.adopt(server.capture("a"))
    assert producer.health()["resident_samples"] == 1


def test_what_cannot_be_adopted(open_features: OpenFeatures, server: Server) -> None:
    producer = open_features()
    ref = server.capture("a")
    with pytest.raises(ValueError, match="generation"):
        producer.adopt(dataclasses.replace(ref, metadata={}))
    with pytest.raises(ValueError):
        producer.track_external_attempt("a", generation=1, feature_names=[])
    wrong = {**ref.feature_specs, "input_ids": FeatureSpec("input_ids", (1, 17), "int64")}
    with pytest.raises(ValueError, match="long"):
        producer.adopt(dataclasses.replace(ref, feature_specs=wrong))
    with pytest.raises(KeyError):
        producer.adopt(dataclasses.replace(ref, sample_id="never", metadata={"generation": 1}))
    producer.adopt(ref)  # not announced, but there
    producer.adopt(elsewhere(ref))
    assert producer.health()["resident_samples"] == 1


@pytest.mark.parametrize("left", [100, 200])
def test_bytes_of_another_length_are_a_key_error(open_features: OpenFeatures, server: Server, left: int) -> None:
    features = open_features()
    ref = server.capture("a")
    features.adopt(ref)
    key = server.key("a", "input_ids")
    assert server.engine.remove(key, force=True) == 0
    assert server.engine.put(key, bytes(left)) == 0
    with pytest.raises(KeyError):
        features.get(ref)
    assert features.health()["active_leases"] == 0


def test_bytes_that_are_gone_are_a_key_error_once_the_grace_has_ended(
    open_features: OpenFeatures, server: Server
) -> None:
    features = open_features(features={"loss_grace": 1.0})
    ref = server.capture("a")
    features.adopt(ref)
    assert server.engine.remove(server.key("a", "input_ids"), force=True) == 0
    begun = time.monotonic()
    with pytest.raises(KeyError):
        features.get(ref)
    assert time.monotonic() - begun >= 1.0, "a holder may still bring them back"
    assert features.health()["active_leases"] == 0


def test_bytes_that_come_back_within_the_grace_are_got(open_features: OpenFeatures, server: Server) -> None:
    features = open_features()
    ref = server.capture("a")
    features.adopt(ref)
    key = server.key("a", "input_ids")
    assert server.engine.remove(key, force=True) == 0
    back = threading.Timer(1.0, lambda: server.engine.put(key, IDS.view(torch.uint8).numpy().tobytes()))
    back.start()
    got, handle = features.get(ref)
    back.join()
    assert torch.equal(got["input_ids"], IDS)
    features.release(handle)


def test_a_full_store_refuses_before_the_server_writes(open_features: OpenFeatures) -> None:
    producer = open_features(max_resident_bytes=1000, external_sample_bytes=400, timeout=2.0)
    for sample in ("a", "b"):
        producer.track_external_attempt(sample, generation=1, feature_names=NAMES)
    with pytest.raises(MemoryError):
        producer.track_external_attempt("c", generation=1, feature_names=NAMES)
    assert producer.discard_external_attempts() == 2
    producer.track_external_attempt("c", generation=1, feature_names=NAMES)


def test_any_member_clears_up_after_a_producer_that_has_gone(
    open_features: OpenFeatures, server: Server, open_store: OpenStore
) -> None:
    one, other = open_features(), open_store()
    one.track_external_attempt("a", generation=1, feature_names=NAMES)
    server.capture("a")
    one.close()  # as a crash, but faster: its session ends either way
    while other.sweep().more:
        pass
    other.drain()
    assert server.holds("a") == [False, False]


def test_specforges_capture_adapter_and_durable_acknowledgement_run_on_it(
    open_features: OpenFeatures, server: Server
) -> None:
    from specforge.inference.adapters.server_capture import (
        ServerCaptureFailure,
        ServerCaptureSchema,
        SGLangServerCaptureAdapter,
    )
    from specforge.inference.capture import CaptureConfig
    from specforge.runtime.contracts import PromptTask
    from specforge.runtime.control_plane.dp_ack import DPAckController

    producer, consumer = open_features(), open_features(retain_on_release=True)
    written = {"input_ids": (IDS, "int64"), "hidden_state": (HIDDEN, "bfloat16")}

    def post(url: str, json_body: dict[str, Any], timeout: float) -> list[Any]:
        rows = []
        for payload in json_body["spec_capture"]:
            asked = [*payload["features"].values(), *(item["name"] for item in payload["passthrough"])]
            assert sorted(asked) == sorted(written) and payload["store_id"] == server.store_id
            ref = server.capture(payload["sample_id"], payload["gen"])
            features = {name: {"shape": list(tensor.shape), "dtype": dtype} for name, (tensor, dtype) in written.items()}
            if payload["sample_id"].endswith("short"):
                features["input_ids"]["shape"], features["hidden_state"]["shape"] = [1, 8, 2], [1, 8, 8]
            identity = {"store_id": server.store_id, "sample_id": ref.sample_id, "gen": payload["gen"]}
            rows.append({"meta_info": {"spec_capture": {**identity, "features": features, "aux_layer_ids": [2]}}})
        return rows

    adapter = SGLangServerCaptureAdapter(
        "http://server",
        producer,
        run_id="run",
        algorithm="eagle3",
        schema=ServerCaptureSchema("hidden_state", None, (("input_ids", "input_ids", ()),)),
        post_fn=post,
    )
    capture = CaptureConfig(frozenset(written), (2,), None, 4)
    prompt = {"input_ids": IDS[0].tolist()}
    tasks = [PromptTask(task, "run", "source", prompt, max_length=16) for task in ("t1", "short", "t2")]
    first, failure, second = adapter.produce_refs(tasks, capture=capture)
    assert isinstance(failure, ServerCaptureFailure)
    for ref in (first, second):
        got, handle = consumer.get(elsewhere(ref))
        assert torch.equal(got["hidden_state"], HIDDEN)
        consumer.release(handle)
    controller = DPAckController("run", feature_store=consumer)
    controller.ack_train_refs("trainer", [first.sample_id], global_step=1, optimizer_durable=True)
    with pytest.raises(KeyError):
        producer.get(first)
    consumer.release(consumer.get(second)[1])
    assert producer.discard_external_attempts() == 0
    for store in (producer, consumer):
        store.drain_pending_removals()
    assert [server.holds(f"run:{task.task_id}") for task in tasks] == [[False] * 2, [False] * 2, [True] * 2]
