"""Stands for the parts of TorchSpec that build and use its store. TorchSpec is on no package index and its trainer needs a
GPU, so what is here follows its source (lightseekorg/TorchSpec, 6f21829): the fields and defaults of its config, and the
four places that build a store, each of which gets at the class in its own way.

| place | gets the class | and the config |
|---|---|---|
| ``torchspec.training.trainer`` | by name, when it is imported | given, without segment and put buffers |
| ``torchspec.inference.engine.th_runner`` | by name, when it is imported | given |
| ``torchspec.inference.engine.mooncake_hidden_states_connector`` (vLLM) | from the module, when it is needed | from the environment |
| the patch of SGLang's scheduler | from the package ``torchspec.transfer.mooncake``, when it is needed | from the environment |
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import types
from typing import Any

import pytest


@dataclasses.dataclass
class MooncakeConfig:
    """The fields of TorchSpec's, with its defaults; sizes as its ``__post_init__`` leaves them."""

    local_hostname: str = "localhost"
    metadata_server: str = "http://localhost:8090/metadata"
    master_server_address: str = "localhost:50051"
    global_segment_size: int = 4 << 30
    local_buffer_size: int = 512 << 20
    protocol: str = "tcp"
    device_name: str = ""
    gpu_buffer_size: int | None = None
    enable_gpu_direct: bool = False
    replica_num: int = 1
    enable_hard_pin: bool = False
    host_buffer_size: int = 128 << 20
    get_batch_size: int = 1
    max_seq_len: int = 8192
    hidden_dim: int = 4096
    async_put_pool_size: int = 1
    store_full_error_codes: tuple[int, ...] = (-200,)
    store_full_wait_seconds: float = 0.5
    store_full_log_interval_seconds: float = 5.0
    store_full_max_wait_seconds: float = 0.0
    get_retry_wait_seconds: float = 0.5
    get_retry_log_interval_seconds: float = 10.0
    get_retry_max_wait_seconds: float = 60.0
    kv_lease_ttl_s: float = 5.0

    @classmethod
    def from_env(cls) -> MooncakeConfig:
        return cls(
            local_hostname=os.environ.get("MOONCAKE_LOCAL_HOSTNAME", "localhost"),
            metadata_server=os.environ["MOONCAKE_METADATA_SERVER"],
            master_server_address=os.environ["MOONCAKE_MASTER_SERVER"],
        )


class EagleMooncakeStore:
    """What must not be built."""

    def __init__(self, config: MooncakeConfig) -> None:
        raise AssertionError("TorchSpec's own store was built")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the parts where TorchSpec has them, until the test ends."""

    def module(name: str, **contents: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__path__ = []
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        parent, _, last = name.rpartition(".")
        if parent:
            monkeypatch.setattr(sys.modules[parent], last, made, raising=False)
        return made

    for name in ("torchspec", "torchspec.config", "torchspec.training", "torchspec.inference", "torchspec.transfer"):
        module(name)
    module("torchspec.config.mooncake_config", MooncakeConfig=MooncakeConfig)
    package = module("torchspec.transfer.mooncake")
    module("torchspec.transfer.mooncake.eagle_store", EagleMooncakeStore=EagleMooncakeStore)

    def lazily(name: str) -> Any:
        if name == "EagleMooncakeStore":
            return importlib.import_module("torchspec.transfer.mooncake.eagle_store").EagleMooncakeStore
        if name == "MooncakeConfig":
            return MooncakeConfig
        raise AttributeError(name)

    package.__getattr__ = lazily  # type: ignore[method-assign]
    module("torchspec.inference.engine")
    trainer = module("torchspec.training.trainer", EagleMooncakeStore=EagleMooncakeStore)
    runner = module("torchspec.inference.engine.th_runner", EagleMooncakeStore=EagleMooncakeStore)
    connector = module("torchspec.inference.engine.mooncake_hidden_states_connector")

    def of_trainer(config: MooncakeConfig) -> Any:
        config = dataclasses.replace(config, global_segment_size=0, async_put_pool_size=0)
        return vars(trainer)["EagleMooncakeStore"](config)

    def of_runner(config: MooncakeConfig) -> Any:
        return vars(runner)["EagleMooncakeStore"](config)

    def of_connector() -> Any:
        from torchspec.config.mooncake_config import MooncakeConfig as Config  # type: ignore[import-not-found]
        from torchspec.transfer.mooncake.eagle_store import EagleMooncakeStore as Store  # type: ignore[import-not-found]

        return Store(Config.from_env())

    def of_scheduler() -> Any:
        from torchspec.transfer.mooncake import EagleMooncakeStore as Store  # type: ignore[import-not-found]
        from torchspec.transfer.mooncake import MooncakeConfig as Config

        return Store(Config.from_env())

    vars(trainer)["init_mooncake_store"] = of_trainer
    vars(runner)["init_mooncake_store"] = of_runner
    vars(connector)["ensure_mooncake_store"] = of_connector
    vars(package)["init_eagle_mooncake_store"] = of_scheduler
