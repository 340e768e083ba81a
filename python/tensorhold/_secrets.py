"""Secrets: a password, a private key or a store's key, given literally or by reference.

References (``env:NAME``, ``file:PATH``) are not secret: they are shown, pickled and written down, and they are read
where and when the secret is needed, so a rotated secret is picked up. A literal secret is never shown, pickled or
written down: it stays in this process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Union

from tensorhold.errors import Invalid

__all__ = ["Secret"]

SecretLike = Union[str, bytes, bytearray, memoryview, "os.PathLike[str]", "Secret"]

_REFERENCES: Final = ("env:", "file:")
_PEM: Final = "-----BEGIN"
_PEM_FIELDS: Final = ("ca", "certificate", "key")


class Secret:
    """A secret, or a reference to it: ``"env:NAME"``, ``"file:PATH"``, a path, or the secret itself as text or bytes.

    The representation hides a literal secret, and a literal secret refuses to be pickled: give a reference to processes
    that are started later.
    """

    __slots__ = ("_literal", "_value")

    def __init__(self, value: SecretLike) -> None:
        self._value: str | bytes
        self._literal: bool
        if isinstance(value, Secret):
            self._value, self._literal = value._value, value._literal
        elif isinstance(value, str):
            self._value, self._literal = value, not value.startswith(_REFERENCES)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            self._value, self._literal = bytes(value), True
        elif isinstance(value, os.PathLike):
            self._value, self._literal = f"file:{os.fsdecode(os.fspath(value))}", False
        else:
            raise Invalid(
                f"a secret is text, bytes, a path, env:NAME or file:PATH; not {type(value).__name__}",
                operation="python.secret",
            )

    @classmethod
    def env(cls, name: str) -> Secret:
        """The text of an environment variable."""
        return cls(f"env:{name}")

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Secret:
        """The content of a file."""
        return cls(f"file:{os.fsdecode(os.fspath(path))}")

    @classmethod
    def literal(cls, value: str | bytes) -> Secret:
        """The secret itself, even if it looks like a reference."""
        secret = cls(value)
        secret._literal = True
        return secret

    @property
    def is_literal(self) -> bool:
        """Whether this is the secret itself, which is never shown, pickled or written down."""
        return self._literal

    @property
    def reference(self) -> str | None:
        """The reference; None for a literal secret."""
        return None if self._literal or isinstance(self._value, bytes) else self._value

    def native(self) -> str | bytes:
        """The form that the compiled module takes."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(hidden)" if self._literal else f"Secret({self._value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._literal, self._value) == (other._literal, other._value)

    def __hash__(self) -> int:
        return hash(self.reference)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        if self.reference is None:
            raise Invalid(
                "a literal secret cannot be pickled, so that it does not leave its process; "
                'give it as "env:NAME" or "file:PATH", which the other process reads itself',
                operation="python.secret",
            )
        return Secret, (self.reference,)


def guard(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the connection to etcd, with :class:`Secret` in place of passwords and keys. Refuses a value that
    cannot be a secret, without repeating it."""
    guarded = dict(options)
    if guarded.get("password") is not None:
        guarded["password"] = _text("password", guarded["password"])
    tls = guarded.get("tls")
    if tls is not None:
        if not isinstance(tls, Mapping):
            raise _wrong("tls", f"it is a mapping of ca, certificate, key and server_name; not {type(tls).__name__}")
        guarded["tls"] = {
            name: _pem(f"tls.{name}", value) if name in _PEM_FIELDS and value is not None else value
            for name, value in tls.items()
        }
    return guarded


def written(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same for JSON: references as text, and without literal secrets."""
    out: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            out[name] = written(value)
        elif not isinstance(value, Secret):
            out[name] = value
        elif value.reference is not None:
            out[name] = value.reference
    return out


def unwritten(options: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """The literal secrets that :func:`written` leaves out, by their names."""
    out: list[tuple[str, str]] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            out += unwritten(value, f"{before}{name}.")
        elif isinstance(value, Secret) and value.is_literal:
            native = value.native()
            out.append((before + name, native if isinstance(native, str) else native.decode()))
    return out


def _text(name: str, value: object) -> Secret:
    if not isinstance(value, (str, bytes, os.PathLike, Secret)):
        raise _wrong(name, f"it is text, env:NAME or file:PATH; not {type(value).__name__}")
    secret = Secret(value)
    native = secret.native()
    if isinstance(native, bytes):
        try:
            secret = Secret.literal(native.decode())
        except UnicodeDecodeError:
            raise _wrong(name, "these bytes are not UTF-8 text") from None
    return secret


def _pem(name: str, value: object) -> Secret:
    secret = _text(name, value)
    native = secret.native()
    # A PEM may have a preamble; a path has no line breaks. A value that is marked as literal is never shown as a path.
    is_text = isinstance(native, str) and (_PEM in native or "\n" in native)
    if secret.is_literal and isinstance(native, str) and not is_text and not isinstance(value, Secret):
        return Secret.file(native)  # a path, as it has always been
    return secret


def _wrong(name: str, why: str) -> Invalid:
    return Invalid(f"a secret is not usable: {why}", operation="python.settings", facts={"setting": f"etcd_options.{name}"})
