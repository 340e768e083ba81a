"""Opening a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from holdfast._environment import addresses_of_etcd, addresses_of_masters
from holdfast._keys import Key, keys_of
from holdfast._settings import Settings, addresses
from holdfast._store import FeatureStore

__all__ = ["open"]


def open(  # noqa: A001 - holdfast.open
    store: str,
    *,
    master: str | None = None,
    admin: str | Sequence[str] | None = None,
    metadata: str | None = None,
    etcd: str | Sequence[str] | None = None,
    protocol: str = "tcp",
    local_hostname: str = "127.0.0.1",
    client: object | None = None,
    budget: int | None = None,
    pool_bytes: int = 1 << 30,
    warm_bytes: int = 0,
    residency: Literal["dram", "spill"] = "dram",
    checksum: bool = True,
    lease_seconds: float = 60.0,
    sweep_every: float | None = 1.0,
    timeout: float = 30.0,
    environment: Mapping[str, str] | None = None,
    prefetch: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    features: Mapping[str, Any] | None = None,
    index: Mapping[str, Any] | None = None,
    etcd_options: Mapping[str, Any] | None = None,
    role: str = "",
    key: Key | None = None,
    key_id: str | None = None,
    lazy: bool = False,
) -> FeatureStore:
    """Opens a store on a Mooncake cluster and an etcd. The settings are those of :class:`Settings`.

    Without ``master``, ``admin`` and ``metadata``, the cluster is the one that the environment names
    (``HOLDFAST_MASTER``, ``HOLDFAST_ADMIN``, ``HOLDFAST_METADATA``), or one on this host; if one of them is given, the
    environment does not count, because it may name another cluster. Without ``etcd``, that is the environment's, too
    (``HOLDFAST_ETCD``; without ``etcd_options`` also ``HOLDFAST_ETCD_USER``, ...).

    ``client`` is a ``MooncakeDistributedStore`` that is already set up; the caller remains responsible for closing it.
    With ``lazy`` the store opens itself at its first call, in the process that makes the call: for workers that are
    forked later.

    With ``key`` the store is sealed: tensors are encrypted and authenticated before they leave this process. A key is
    32 bytes, their base64 or hex text, or ``"env:NAME"`` or ``"file:PATH"`` that refers to one of these. ``key`` may
    also be a mapping from ids to keys; ``key_id`` then names the key that seals, and the others still open. See
    ``docs/sealing.md``.
    """
    reached: dict[str, Any] = {}
    if master is None and admin is None and metadata is None:
        reached |= addresses_of_masters()
    if etcd is None:
        reached |= addresses_of_etcd()
    given = {"master": master, "admin": admin, "metadata": metadata, "etcd": etcd, "etcd_options": etcd_options}
    reached |= {name: value for name, value in given.items() if value is not None}
    for name in {"admin", "etcd"} & set(reached):
        reached[name] = addresses(reached[name])
    settings = Settings(
        store=store,
        protocol=protocol,
        local_hostname=local_hostname,
        role=role,
        budget=budget,
        pool_bytes=pool_bytes,
        warm_bytes=warm_bytes,
        residency=residency,
        checksum=checksum,
        lease_seconds=lease_seconds,
        sweep_every=sweep_every,
        timeout=timeout,
        environment=dict(environment or {}),
        prefetch=dict(prefetch or {}),
        engine=dict(engine or {}),
        features=dict(features or {}),
        index=dict(index or {}),
        keys=keys_of(key, key_id),
        **reached,
    )
    opened = FeatureStore(settings, client=client)
    if not lazy:
        opened.connect()
    return opened
