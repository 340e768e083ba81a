"""TorchSpec's own ways of building its store, on a real cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

import torchspec_parts
from tensorhold.torchspec import EagleOutput, EagleStore, replace_mooncake_store
from servers import Cluster
from torchspec_parts import MooncakeConfig


@pytest.fixture
def config(cluster: Cluster, store_name: str, monkeypatch: pytest.MonkeyPatch) -> MooncakeConfig:
    """TorchSpec's config for the cluster, in its own variables too, and the variables that Tensorhold reads beside them."""
    torchspec_parts.install(monkeypatch)
    monkeypatch.setenv("TENSORHOLD_STORE", store_name)
    monkeypatch.setenv("TENSORHOLD_ETCD", ",".join(cluster.etcd))
    monkeypatch.setenv("TENSORHOLD_ADMIN", ",".join(cluster.admin))
    monkeypatch.setenv("TENSORHOLD_SWEEP_EVERY", "none")
    environment = cluster.settings()["environment"]
    monkeypatch.setenv("TENSORHOLD_ENVIRONMENT", ",".join(f"{name}={value}" for name, value in environment.items()))
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", "127.0.0.1")
    monkeypatch.setenv("MOONCAKE_METADATA_SERVER", cluster.metadata)
    monkeypatch.setenv("MOONCAKE_MASTER_SERVER", cluster.master)
    return MooncakeConfig.from_env()


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    with ExitStack() as stack:
        yield lambda store: stack.enter_context(store)


def test_all_four_places_of_torchspec_build_tensorholds_store(
    config: MooncakeConfig, closing: Callable[[Any], Any]
) -> None:
    replace_mooncake_store()
    replace_mooncake_store()
    trainer = closing(sys.modules["torchspec.training.trainer"].init_mooncake_store(config))
    runner = closing(sys.modules["torchspec.inference.engine.th_runner"].init_mooncake_store(config))
    connector = sys.modules["torchspec.inference.engine.mooncake_hidden_states_connector"]
    engines = {
        "hf": runner,
        "vllm": closing(connector.ensure_mooncake_store()),
        "sglang": closing(sys.modules["torchspec.transfer.mooncake"].init_eagle_mooncake_store()),
    }
    trainer.setup(device="cpu")
    for name, engine in engines.items():
        engine.setup(device="cpu")
        engine.warmup_rdma()
        ids = torch.arange(4).unsqueeze(0)
        told = engine.put(
            key=name, hidden_states=torch.ones(1, 4, 6), input_ids=ids, last_hidden_states=torch.zeros(1, 4, 2), target=None
        )
        engine.flush()
        # What the trainer's data fetcher does with a sample.
        got = trainer.get(key=name, shapes=told["shapes"], dtypes=told["dtypes"], device=torch.device("cpu"))
        tensors = got.to_tensor_dict()
        assert sorted(tensors) == ["hidden_states", "input_ids", "input_ids_cpu", "last_hidden_states"]
        assert torch.equal(tensors["input_ids"], ids) and tensors["hidden_states"].dtype == torch.bfloat16
        trainer.remove_eagle3_tensors(name, has_last_hidden_states=True, has_target=False)
        assert not engine.exists(name)


def test_a_config_says_what_it_says_here_too(
    config: MooncakeConfig, closing: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    config.replica_num, config.enable_gpu_direct, config.async_put_pool_size = 2, True, 8
    config.device_name = ""
    with caplog.at_level("WARNING", logger="tensorhold"):
        store = closing(EagleStore.from_config(config, timeout=20.0))
        store.setup()
    settings = store._store.settings
    assert (settings.master, settings.metadata, settings.local_hostname) == (
        config.master_server_address,
        config.metadata_server,
        "127.0.0.1",
    )
    assert settings.features["replicas"] == 2 and settings.timeout == 20.0 and settings.sweep_every is None
    assert settings.pool_bytes == (512 << 20) + 8 * (128 << 20), "what it would have had in buffers"
    texts = [record.getMessage() for record in caplog.records]
    assert any("enable_gpu_direct" in text for text in texts)
    assert any(f"global_segment_size={4 << 30} is not lent" in text for text in texts)


def test_a_store_without_a_name_is_refused(config: MooncakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORHOLD_STORE")
    with pytest.raises(ValueError, match="TENSORHOLD_STORE"):
        EagleStore(config)
    named = EagleStore.from_config(config, store_id="named")
    assert named._store.name == "named"
    named.close()


def test_an_output_has_the_tensors_that_there_are() -> None:
    output = EagleOutput(hidden_states=torch.ones(1), target=None, input_ids=torch.ones(2))
    assert list(output.to_tensor_dict()) == ["hidden_states", "input_ids"]
    output.loss_mask = torch.ones(3)
    assert sorted(output.to_tensor_dict()) == ["hidden_states", "input_ids", "loss_mask"]
