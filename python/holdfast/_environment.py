"""What the environment says of a store, for programs whose own launchers build it: SpecForge's and TorchSpec's.

| variable | setting |
|---|---|
| ``HOLDFAST_ETCD`` | ``etcd``: the index's addresses, with commas |
| ``HOLDFAST_ADMIN`` | ``admin``: the masters' HTTP addresses, with commas |
| ``HOLDFAST_KEY``, ``HOLDFAST_KEY_ID`` | ``key``, ``key_id`` of a sealed store |
| ``HOLDFAST_SETTINGS`` | any of the settings of :func:`holdfast.open`, as JSON; or the path of a file with it |

A variable of its own counts more than ``HOLDFAST_SETTINGS``.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast._opening import open as open_store
from holdfast.errors import Invalid

VARIABLES: Final = {
    "HOLDFAST_ETCD": "etcd",
    "HOLDFAST_ADMIN": "admin",
    "HOLDFAST_KEY": "key",
    "HOLDFAST_KEY_ID": "key_id",
}
SETTINGS: Final = "HOLDFAST_SETTINGS"


def settings_of_environment(*further: str) -> dict[str, Any]:
    """The settings that the environment names. ``further`` are names that the caller knows beside those of ``open``."""
    named = {name: os.environ[variable] for variable, name in VARIABLES.items() if os.environ.get(variable)}
    settings = _settings(os.environ.get(SETTINGS, "").strip())
    known = {*inspect.signature(open_store).parameters, *further} - {"store", "client", "lazy"}
    strange = sorted(set(settings) - known)
    if strange:
        raise Invalid(
            f"{SETTINGS}: there is no setting {', '.join(strange)}; there are {', '.join(sorted(known))}",
            operation="python.environment",
        )
    return merged(settings, named)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in layers: a later one counts more. Sections (``engine``, ``features``, ...) are merged, not replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            section = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = {**result[name], **value} if section else value
    return result


def _settings(text: str) -> dict[str, Any]:
    if not text:
        return {}
    source = SETTINGS
    if not text.startswith("{"):
        source = f"the file that {SETTINGS} names"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(
                f"{source} cannot be read; give its path, or the settings themselves as JSON: {error}",
                operation="python.environment",
            ) from error
    try:
        settings = json.loads(text)
    except ValueError as error:
        # Where, and not what: there may be a password in it.
        where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "somewhere"
        raise Invalid(f"{source} is no JSON: see {where}", operation="python.environment") from None
    if not isinstance(settings, dict):
        raise Invalid(f"{source} must be an object of JSON: names and values", operation="python.environment")
    return settings
