"""The keys of a sealed store: their forms in the settings, and the form that the compiled module takes.

Nothing here shows a key, neither a representation nor an error. A pickled store carries the references to its keys
(``env:NAME``, ``file:PATH``); a store with a literal key refuses to be pickled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Union

from tensorhold._secrets import Secret
from tensorhold.errors import Invalid

__all__ = ["Key", "Keys", "keys_of"]

OneKey = Union[bytes, bytearray, memoryview, str, "os.PathLike[str]", Secret]
"""32 bytes; their text in base64 or hex; or ``"env:NAME"``, ``"file:PATH"`` or a path that refers to one of these."""
Key = Union[OneKey, Mapping[str, OneKey]]
"""One key, or several by their ids."""

USUAL_ID: Final = "default"
"""The id of a key that is given without an id."""


class Keys:
    """The key that seals, and the older keys that still open."""

    __slots__ = ("_secrets", "current")

    def __init__(self, current: str, secrets: Mapping[str, Secret]) -> None:
        self.current = current
        self._secrets = dict(secrets)

    @property
    def ids(self) -> list[str]:
        """The ids of all keys."""
        return list(self._secrets)

    def native(self) -> tuple[str, list[tuple[str, bytes | str]]]:
        """The form that the compiled module takes."""
        return self.current, [(name, secret.native()) for name, secret in self._secrets.items()]

    def __repr__(self) -> str:
        return f"Keys(current={self.current!r}, ids={self.ids!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.native() == other.native()

    def __hash__(self) -> int:
        return hash((self.current, tuple(self.ids)))

    def __reduce__(self) -> tuple[type[Keys], tuple[str, dict[str, Secret]]]:
        return Keys, (self.current, self._secrets)


def keys_of(key: Key | None, key_id: str | None) -> Keys | None:
    """Parses ``key`` and ``key_id``. The text or file that a reference names is read when the store opens."""
    if key is None:
        if key_id is not None:
            raise _invalid("key_id names the current key; give the key too")
        return None
    if not isinstance(key, Mapping):
        current = USUAL_ID if key_id is None else key_id
        return Keys(current, {current: _secret(key)})
    secrets = {str(name): _secret(one) for name, one in key.items()}
    if key_id is None:
        if len(secrets) != 1:
            raise _invalid("there are several keys, or none; say with key_id which one seals")
        key_id = next(iter(secrets))
    if key_id not in secrets:
        raise _invalid("key_id is not the id of a key that was given")
    return Keys(key_id, secrets)


def _secret(key: object) -> Secret:
    if isinstance(key, (str, bytes, bytearray, memoryview, os.PathLike, Secret)):
        return Secret(key)
    raise _invalid(f"a key is 32 bytes, text, a path or a mapping of these; not {type(key).__name__}")


def _invalid(message: str) -> Invalid:
    return Invalid(message, operation="python.key")
