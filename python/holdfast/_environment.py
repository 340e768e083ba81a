"""The settings of a store in the environment: its addresses for :func:`holdfast.open`, and all of them for programs whose
own launchers build the store, SpecForge's and TorchSpec's.

| variable | setting |
|---|---|
| ``HOLDFAST_MASTER``, ``HOLDFAST_METADATA`` | ``master``, ``metadata``; the launchers have these in their own configuration |
| ``HOLDFAST_ADMIN`` | ``admin``: the masters' HTTP addresses, separated by commas |
| ``HOLDFAST_ETCD`` | ``etcd``: the index's addresses, separated by commas |
| ``HOLDFAST_KEY``, ``HOLDFAST_KEY_ID`` | ``key``, ``key_id`` of a sealed store |
| ``HOLDFAST_ETCD_USER``, ``HOLDFAST_ETCD_PASSWORD`` | the login at etcd; the password, or ``file:`` and its path |
| ``HOLDFAST_ETCD_CA``, ``..._CERTIFICATE``, ``..._PRIVATE_KEY`` | ``tls`` of ``etcd_options``: paths |
| ``HOLDFAST_ETCD_ROOT`` | ``root`` of ``etcd_options`` |
| ``HOLDFAST_ETCD_ALLOW_PLAIN_PASSWORD`` | ``1``: a password may go over ``http`` |
| ``HOLDFAST_SETTINGS`` | any settings of :func:`holdfast.open`, as JSON; or the path of a file that holds the JSON |

A dedicated variable takes precedence over ``HOLDFAST_SETTINGS``. A secret is passed on as a reference to its variable,
or as the reference that the variable holds. So it is in no pickle, and it is read again whenever a connection is made.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast._settings import Settings
from holdfast.errors import Invalid

VARIABLES: Final = {
    "HOLDFAST_ETCD": "etcd",
    "HOLDFAST_ADMIN": "admin",
    "HOLDFAST_KEY_ID": "key_id",
}
_MASTERS: Final = {
    "HOLDFAST_MASTER": "master",
    "HOLDFAST_ADMIN": "admin",
    "HOLDFAST_METADATA": "metadata",
}
KEY: Final = "HOLDFAST_KEY"
_PEMS: Final = {
    "ca": "HOLDFAST_ETCD_CA",
    "certificate": "HOLDFAST_ETCD_CERTIFICATE",
    "key": "HOLDFAST_ETCD_PRIVATE_KEY",
}
SETTINGS: Final = "HOLDFAST_SETTINGS"


def addresses_of_masters() -> dict[str, Any]:
    """The settings in the environment that say where Mooncake is."""
    return _set_of(_MASTERS) if os.environ.get("HOLDFAST_MASTER") else {}


def addresses_of_etcd() -> dict[str, Any]:
    """The settings in the environment that say where etcd is, and how to log in there."""
    if not os.environ.get("HOLDFAST_ETCD"):
        return {}
    return {"etcd": os.environ["HOLDFAST_ETCD"], "etcd_options": etcd_options_of_environment()}


def _set_of(variables: Mapping[str, str]) -> dict[str, Any]:
    return {name: os.environ[variable] for variable, name in variables.items() if os.environ.get(variable)}


def settings_of_environment(*further: str) -> dict[str, Any]:
    """The settings in the environment. ``further`` names settings that the caller accepts besides those of ``open``."""
    named = _set_of(VARIABLES)
    key, options = secret_of(KEY), etcd_options_of_environment()
    if key is not None:
        named["key"] = key
    if options:
        named["etcd_options"] = options
    settings = _settings(os.environ.get(SETTINGS, "").strip())
    known = {field.name for field in dataclasses.fields(Settings)} - {"store", "keys"} | {"key", "key_id", *further}
    strange = sorted(set(settings) - known)
    if strange:
        raise Invalid(
            f"{SETTINGS}: there is no setting {', '.join(strange)}; there are {', '.join(sorted(known))}",
            operation="python.environment",
        )
    return merged(settings, named)


def secret_of(variable: str) -> str | None:
    """The reference to a secret that a variable holds or refers to (``file:PATH``, ``env:NAME``); None if it is not
    set."""
    value = os.environ.get(variable)
    if not value:
        return None
    return value if value.startswith(("file:", "env:")) else f"env:{variable}"


def etcd_options_of_environment() -> dict[str, Any]:
    """The settings of the connection to etcd in the environment, besides its addresses."""
    options: dict[str, Any] = {}
    for name, variable in (("user", "HOLDFAST_ETCD_USER"), ("root", "HOLDFAST_ETCD_ROOT")):
        if os.environ.get(variable):
            options[name] = os.environ[variable]
    password = secret_of("HOLDFAST_ETCD_PASSWORD")
    if password is not None:
        options["password"] = password
    tls = {name: os.environ[variable] for name, variable in _PEMS.items() if os.environ.get(variable)}
    if tls:
        options["tls"] = tls
    if os.environ.get("HOLDFAST_ETCD_ALLOW_PLAIN_PASSWORD", "0").lower() in ("1", "true"):
        options["allow_plain_password"] = True
    return options


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merges layers of settings; a later layer takes precedence. Sections (``engine``, ``features``, ...) are merged,
    not replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            section = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = merged(result[name], value) if section else value
    return result


def _settings(text: str) -> dict[str, Any]:
    if not text:
        return {}
    source = SETTINGS
    if not text.startswith("{"):
        source = f"the file that {SETTINGS} names"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            # Says why, but does not repeat the text: it may be settings with a password in them that were taken for a
            # path.
            why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise Invalid(
                f"{source} cannot be read ({why}); give its path, or the settings themselves as JSON, which begin with {{",
                operation="python.environment",
            ) from None
    try:
        settings = json.loads(text)
    except ValueError as error:
        # Says where, but does not repeat the text: there may be a password in it.
        where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "somewhere"
        raise Invalid(f"{source} is no JSON: see {where}", operation="python.environment") from None
    if not isinstance(settings, dict):
        raise Invalid(f"{source} must be an object of JSON: names and values", operation="python.environment")
    return settings
