"""Opening a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal

from tensorhold._environment import merged, settings_beside
from tensorhold._keys import Key, keys_of
from tensorhold._settings import Settings, addresses
from tensorhold._store import FeatureStore
from tensorhold.errors import Invalid

__all__ = ["open"]


def open(  # noqa: A001 - tensorhold.open
    store: str | None = None,
    *,
    master: str | None = None,
    admin: str | Sequence[str] | None = None,
    metadata: str | None = None,
    etcd: str | Sequence[str] | None = None,
    protocol: str | None = None,
    local_hostname: str | None = None,
    client: object | None = None,
    budget: int | None = None,
    pool_bytes: int | None = None,
    warm_bytes: int | None = None,
    residency: Literal["dram", "spill"] | None = None,
    checksum: bool | None = None,
    lease_seconds: float | None = None,
    sweep_every: float | EllipsisType | None = ...,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    prefetch: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    features: Mapping[str, Any] | None = None,
    index: Mapping[str, Any] | None = None,
    etcd_options: Mapping[str, Any] | None = None,
    role: str | None = None,
    key: Key | None = None,
    key_id: str | None = None,
    lazy: bool = False,
) -> FeatureStore:
    """Opens a store on a Mooncake cluster and an etcd. The settings are those of :class:`Settings`.

    What is not given is as variables (``TENSORHOLD_...``) say, or the file that ``TENSORHOLD_CONFIG`` names, or the defaults;
    ``docs/settings.md`` has all of them, and ``tensorhold settings`` shows which are in force. ``engine``, ``features`` and the
    other sections are merged. With ``master`` the environment's ``admin`` and ``metadata`` do not count, and with ``etcd``
    not its login: they may be another cluster's.

    ``client`` is a ``MooncakeDistributedStore`` that is already set up; the caller remains responsible for closing it.
    With ``lazy`` the store opens itself at its first call, in the process that makes the call: for workers that are
    forked later.

    With ``key`` the store is sealed: tensors are encrypted and authenticated before they leave this process. A key is
    32 bytes, their base64 or hex text, or ``"env:NAME"`` or ``"file:PATH"`` that refers to one of these. ``key`` may
    also be a mapping from ids to keys; ``key_id`` then names the key that seals, and the others still open. See
    ``docs/sealing.md``.
    """
    arguments: dict[str, Any] = {
        "store": store,
        "master": master,
        "admin": admin,
        "metadata": metadata,
        "etcd": etcd,
        "protocol": protocol,
        "local_hostname": local_hostname,
        "budget": budget,
        "pool_bytes": pool_bytes,
        "warm_bytes": warm_bytes,
        "residency": residency,
        "checksum": checksum,
        "lease_seconds": lease_seconds,
        "timeout": timeout,
        "environment": environment,
        "prefetch": prefetch,
        "engine": engine,
        "features": features,
        "index": index,
        "etcd_options": etcd_options,
        "role": role,
    }
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if sweep_every is not ...:
        arguments["sweep_every"] = sweep_every
    found = settings_beside([*arguments, "key"] if key is not None else arguments, up=True)
    found.pop("external_sample_bytes", None)
    found_key, found_id = found.pop("key", None), found.pop("key_id", None)
    given = merged(found, arguments)
    if "store" not in given:
        raise Invalid("name the store: as an argument, in TENSORHOLD_STORE or in the file of settings", operation="python.open")
    for name in {"admin", "etcd"} & set(given):
        given[name] = addresses(given[name])
    settings = Settings(**given, keys=keys_of(found_key if key is None else key, found_id if key_id is None else key_id))
    opened = FeatureStore(settings, client=client)
    if not lazy:
        opened.connect()
    return opened
