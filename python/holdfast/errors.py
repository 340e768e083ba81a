"""What can go wrong: one exception for each kind, all of them :class:`HoldfastError`.

Each is also the builtin exception that Python programs expect for such a thing: a sample that is gone is a
``KeyError``, a full store a ``MemoryError``, and so on. Decide by the class and by ``retry``; read the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal

__all__ = [
    "Capacity",
    "Conflict",
    "Corrupt",
    "DeadlineExceeded",
    "Denied",
    "Fenced",
    "HoldfastError",
    "Internal",
    "Invalid",
    "NotFound",
    "Timeout",
    "Unavailable",
    "Unsupported",
]

Retry = Literal["never", "safe", "ambiguous"]


class HoldfastError(Exception):
    """Something went wrong. The message says what happened and, where there is something to do, what to do."""

    kind: ClassVar[str] = "internal"
    """What went wrong, as coarsely as a caller needs it to decide."""
    message: str
    """What happened, without operation and facts."""
    retry: Retry
    """``never``: the same call fails again. ``safe``: call again later. ``ambiguous``: it may have taken effect, look first."""
    operation: str
    """The operation that failed, dotted."""
    facts: dict[str, str]
    """What else is known: the sample, the key, the code of the engine, ..."""

    def __init__(
        self,
        message: str,
        *,
        retry: Retry = "never",
        operation: str = "python",
        facts: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry = retry
        self.operation = operation
        self.facts = dict(facts or {})

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.operation}: {self.message} ({self.kind})" + (f" [{facts}]" if facts else "")

    def __reduce__(self) -> tuple[Callable[[str], HoldfastError], tuple[str]]:
        again = partial(type(self), retry=self.retry, operation=self.operation, facts=self.facts)
        return again, (self.message,)


class Invalid(HoldfastError, ValueError):
    """The request itself is wrong; the same request can never succeed."""

    kind = "invalid"


class NotFound(HoldfastError, KeyError):
    """The thing named does not exist, or no longer does. A sample that was lost has ``facts["reason"] == "lost"``."""

    kind = "not found"


class Fenced(HoldfastError, KeyError):
    """The lease or session is no longer valid: it was answered, ran out, or the sample was taken back."""

    kind = "fenced"


class Conflict(HoldfastError):
    """Somebody else changed the thing first; look again."""

    kind = "conflict"


class Capacity(HoldfastError, MemoryError):
    """There is no room for it now."""

    kind = "capacity"


class Unavailable(HoldfastError, ConnectionError):
    """The other side did not answer, or said that it cannot serve now."""

    kind = "unavailable"


class DeadlineExceeded(Unavailable, TimeoutError):
    """The other side did not answer within the time that the caller gave."""


class Timeout(HoldfastError, TimeoutError):
    """A wait for a condition ended without it."""

    kind = "timeout"


class Corrupt(HoldfastError):
    """Bytes are not what was committed; they are not handed out."""

    kind = "corrupt"


class Denied(HoldfastError, PermissionError):
    """The caller is not allowed to."""

    kind = "denied"


class Unsupported(HoldfastError, NotImplementedError):
    """This engine, this build or this environment cannot do it."""

    kind = "unsupported"


class Internal(HoldfastError, RuntimeError):
    """A bug of ours or of the other side."""

    kind = "internal"
