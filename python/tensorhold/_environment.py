"""The settings that variables and the file of ``TENSORHOLD_CONFIG`` say: for :func:`tensorhold.open`, and for programs whose own
launchers build the store, SpecForge's and TorchSpec's. ``docs/settings.md`` has all of them.

A secret in a variable is passed on as a reference to its variable. So it is in no pickle, and it is read again whenever a
connection is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tensorhold import _tensorhold

__all__ = ["merged", "settings_beside"]


def settings_beside(named: Iterable[str], *, up: bool = False) -> dict[str, Any]:
    """The settings of a store that this process finds, for a caller that has values of its own for those that are
    ``named``: of another cluster than the caller's, no addresses and no login. With ``up`` also the addresses that
    ``tensorhold up`` recorded, if nothing names any."""
    found: dict[str, Any] = json.loads(_tensorhold.read_settings(list(named), up))
    found.pop("steward", None)
    return found


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merges layers of settings; a later layer takes precedence. Sections (``engine``, ``features``, ...) are merged,
    not replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            section = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = merged(result[name], value) if section else value
    return result
