"""The exceptions of Holdfast: one for each kind of error, all of them :class:`HoldfastError`.

Each is also the builtin exception that Python programs expect in its place: for a sample that is gone a ``KeyError``,
for a full store a ``MemoryError``, and so on. Decide by the class and by ``retry``; read the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

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
    "PutsFailed",
    "Timeout",
    "Unavailable",
    "Unsupported",
]

Retry = Literal["never", "safe", "ambiguous"]


class HoldfastError(Exception):
    """A Holdfast call failed. The message says what happened and, where there is something to do, what to do."""

    kind: ClassVar[str] = "internal"
    """What went wrong, only as finely as a caller needs in order to decide."""
    message: str
    """What happened, without operation and facts."""
    retry: Retry
    """``never``: the same call fails again. ``safe``: call again later. ``ambiguous``: it may have taken effect, read
    back first."""
    operation: str
    """The operation that failed, dotted."""
    facts: dict[str, str]
    """Further facts: the sample, the key, the engine's code, ..."""

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

    def __reduce__(self) -> tuple[Callable[..., HoldfastError], tuple[Any, ...]]:
        again = partial(type(self), retry=self.retry, operation=self.operation, facts=self.facts)
        return again, (self.message,)


class Invalid(HoldfastError, ValueError):
    """The request itself is wrong; the same request can never succeed."""

    kind = "invalid"


class NotFound(HoldfastError, KeyError):
    """The named sample does not exist, or no longer does. A sample that was lost has ``facts["reason"] == "lost"``."""

    kind = "not found"


class Fenced(HoldfastError, KeyError):
    """The lease or session is no longer valid: the lease was answered or expired, or the sample was taken back."""

    kind = "fenced"


class Conflict(HoldfastError):
    """Another process changed the record first; read it again."""

    kind = "conflict"


class Capacity(HoldfastError, MemoryError):
    """There is no room for it now."""

    kind = "capacity"


class Unavailable(HoldfastError, ConnectionError):
    """The other side did not answer, or said that it cannot serve now."""

    kind = "unavailable"


class DeadlineExceeded(Unavailable, TimeoutError):
    """The other side did not answer within the caller's timeout."""


class Timeout(HoldfastError, TimeoutError):
    """A wait for a condition, such as that everything is freed, ended before the condition was met."""

    kind = "timeout"


class Corrupt(HoldfastError):
    """The bytes are not the committed bytes; they are not returned."""

    kind = "corrupt"


class Denied(HoldfastError, PermissionError):
    """The caller lacks the permission."""

    kind = "denied"


class Unsupported(HoldfastError, NotImplementedError):
    """This engine, this build or this environment cannot do it."""

    kind = "unsupported"


class PutsFailed(HoldfastError):
    """Some puts of a writer failed; ``failed`` says which, and why. The others are not affected."""

    kind = "puts failed"
    failed: dict[str, HoldfastError]
    """The errors, by sample."""

    def __init__(self, failed: Mapping[str, HoldfastError]) -> None:
        first, error = next(iter(failed.items()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        super().__init__(
            f"sample {first!r} was not put{more}: {error.message}",
            retry="ambiguous" if any(one.retry == "ambiguous" for one in failed.values()) else error.retry,
            operation="python.writer",
        )
        self.failed = dict(failed)

    def __reduce__(self) -> tuple[Callable[..., HoldfastError], tuple[Any, ...]]:
        return type(self), (self.failed,)


class Internal(HoldfastError, RuntimeError):
    """A bug in Holdfast or in the other side."""

    kind = "internal"
