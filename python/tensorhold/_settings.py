"""The settings of a store: what users write, and the JSON that the compiled module reads."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tensorhold import _secrets
from tensorhold._keys import Keys
from tensorhold.errors import Invalid

__all__ = ["Settings"]


def warn_about_budget(store: str, asked_for: int | None, in_force: int | None) -> None:
    """Warns that another budget is in force than the requested one: the first budget that was set stays."""
    if asked_for is not None and in_force is not None and asked_for != in_force:
        warnings.warn(
            f"store {store!r} has a budget of {in_force} bytes already, which stays: the {asked_for} bytes that "
            "were requested here are ignored. Open it with the budget in force, or change that with store.set_budget",
            RuntimeWarning,
            stacklevel=4,
        )


@dataclass(frozen=True)
class Settings:
    """How a store is reached, and how it behaves in this process. Everything but its name has a default."""

    store: str
    """The store's name: all processes that use the same name on the same index share its samples."""
    master: str = "127.0.0.1:50051"
    """Mooncake's master: ``host:port``, or ``etcd://host:port;...`` when masters are highly available."""
    admin: tuple[str, ...] | None = None
    """The masters' HTTP addresses, ``http://host:port``. None: port 9003 on the master's host."""
    metadata: str = "P2PHANDSHAKE"
    """Where transfer engines find each other: ``P2PHANDSHAKE`` for no server, or the URL of a metadata server. The same
    for all members of the cluster."""
    etcd: tuple[str, ...] = ("http://127.0.0.1:2379",)
    """The nodes of the etcd that holds the index."""
    protocol: str = "tcp"
    """How bytes move: ``tcp`` or ``rdma``."""
    local_hostname: str = "127.0.0.1"
    """The name under which other hosts reach this one."""
    role: str = ""
    """What this process is in its run (``producer``, ``trainer-3``), for :meth:`FeatureStore.sessions`. Free text."""
    budget: int | None = None
    """The most bytes that the store may hold. The first process that sets it decides. None: only the engine's limit."""
    pool_bytes: int = 1 << 30
    """The most memory of the pool into which gets without ``into`` receive."""
    warm_bytes: int = 0
    """How much of ``pool_bytes`` is allocated when the store is opened."""
    residency: Literal["dram", "spill"] = "dram"
    """Where samples that this process puts may lie. ``dram``: pinned in DRAM. ``spill``: on SSD once DRAM is full; a put
    then returns only when every object has been seen on SSD. ``docs/ssd.md`` has the flags of the master that it
    needs."""
    prefetch: Mapping[str, Any] = field(default_factory=dict)
    """Settings of prefetches, as for :class:`tensorhold.kv.PageStore`."""
    checksum: bool = True
    """Whether tensors get a checksum when they are put. A get always verifies the checksum of a tensor that has one."""
    lease_seconds: float = 60.0
    """How many seconds a lease lasts without being renewed."""
    sweep_every: float | None = 1.0
    """How often, in seconds, this process cleans up after processes that died. None: it leaves that to other
    processes."""
    timeout: float = 30.0
    """How many seconds a call may take if it is given no ``timeout``. Applies to opening, too."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that Mooncake's library reads when it is loaded (``MC_...``)."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the engine: ``devices``, ``buffer_bytes``, ``tenant``, ``max_calls``, ``idle_waits`` (``"auto"``
    or ``"off"``), ..."""
    features: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the store: ``chunk_bytes``, ``replicas``, ``streams``, ``max_in_flight``, ``adopt_prefixes``,
    ``loss_grace``, ..."""
    index: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the index, the same for all processes: ``session_ttl``, ``tick``, ``grace_ticks``,
    ``reserve_ticks``, ``lost_ticks``, ``dead_ticks``, ``dead_most``."""
    etcd_options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the connection to etcd: ``root``, ``user``, ``password``, ``tls``, ... The password, and
    ``ca``, ``certificate`` and ``key`` of ``tls``, become :class:`tensorhold.Secret`: ``env:NAME`` and ``file:PATH`` are
    read at every connection and travel with the settings; a literal secret stays in this process."""
    keys: Keys | None = None
    """The keys of a sealed store; None for a plain one. The same for all processes of the store."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "etcd_options", _secrets.guard(self.etcd_options))
        for name in ("timeout", "lease_seconds"):
            if not getattr(self, name) > 0:
                raise Invalid("give a number of seconds above zero", operation="python.settings", facts={"setting": name})
        if self.engine.get("segment_bytes"):
            raise Invalid(
                "a process that uses a store lends no memory: a sample there goes with the process, committed or not. "
                "Leave segment_bytes out, and lend memory from processes that keep running: mooncake_client "
                f"--master_server_address={self.master} --metadata_server={self.metadata} --global_segment_size=32GB",
                operation="python.settings",
                facts={"setting": "engine.segment_bytes"},
            )

    def __repr__(self) -> str:
        sealed = "" if self.keys is None else f", keys={self.keys!r}"  # the representation shows only their ids
        return f"Settings({self.store!r}, master={self.master!r}, etcd={list(self.etcd)!r}{sealed})"  # no password

    def native_keys(self) -> tuple[str, list[tuple[str, bytes | str]]] | None:
        """The keys, in the form that the compiled module takes; never part of :meth:`to_json`."""
        return None if self.keys is None else self.keys.native()

    def native_secrets(self) -> list[tuple[str, str]]:
        """The secrets of the connection to etcd that are not part of :meth:`to_json`, by their names."""
        return _secrets.unwritten(self.etcd_options)

    def to_json(self) -> str:
        """The JSON that the compiled module reads; without the keys, and without literal secrets."""
        tick = float(self.index.get("tick", 1.0))
        engine = {
            "master": self.master,
            "admin": list(self.admin) if self.admin is not None else _usual_admin(self.master),
            "metadata": self.metadata,
            "local_hostname": self.local_hostname,
            "protocol": self.protocol,
            "environment": dict(self.environment),
            **self.engine,
        }
        features = {
            "store": self.store,
            "checksum": self.checksum,
            "residency": self.residency,
            "prefetch": dict(self.prefetch),
            "pool_bytes": self.pool_bytes,
            "warm_bytes": self.warm_bytes,
            "lease_ticks": max(1, round(self.lease_seconds / tick)),
            "sweep_every": self.sweep_every,
            **self.features,
        }
        sections = {
            "engine": engine,
            "features": features,
            "index": dict(self.index),
            "etcd": {"endpoints": list(self.etcd), **_secrets.written(self.etcd_options)},
            "budget": self.budget,
            "program": _program(),
            "role": self.role,
        }
        try:
            return json.dumps(sections)
        except (TypeError, ValueError) as error:
            raise Invalid(f"a setting cannot be written as JSON: {error}", operation="python.settings") from error


def _program() -> str:
    """What is running, for :meth:`FeatureStore.sessions`. Its arguments may hold secrets, and its name may be any bytes."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return name.encode("utf-8", "replace").decode()


def addresses(text: str | Sequence[str]) -> tuple[str, ...]:
    """One address, several separated by commas, or a sequence of addresses."""
    parts = text.split(",") if isinstance(text, str) else text
    return tuple(part.strip() for part in parts if part.strip())


def _usual_admin(master: str) -> list[str]:
    host, _, port = master.rpartition(":")
    return [f"http://{host}:9003"] if host and port.isdecimal() and "://" not in master else []
