"""The restore guard: the operator runs it when etcd was restored from a snapshot, or replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorhold import _tensorhold
from tensorhold._settings import Settings, addresses

__all__ = ["restore_guard"]


def restore_guard(
    *,
    etcd: str | Sequence[str] = "http://127.0.0.1:2379",
    etcd_options: Mapping[str, Any] | None = None,
    timeout: float = 30.0,
) -> str:
    """Declares the current content of etcd to be the index from now on: begins a new epoch, and returns its name.

    Run it once after etcd was restored from a snapshot or replaced, before new processes are started. It fences every
    process that used the index before. Each such process goes on by itself: its sessions, leases and reservations have
    ended, and records that the snapshot does not have are gone. Running it twice, or without need, costs all processes
    their sessions and nothing else. If it fails, run it again. See ``docs/etcd-restore.md``.
    """
    settings = Settings(store="restore-guard", etcd=addresses(etcd), etcd_options=dict(etcd_options or {}))
    return _tensorhold.restore_guard(settings.to_json(), float(timeout), settings.native_secrets()).wait()
