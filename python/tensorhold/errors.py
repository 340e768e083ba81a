"""The exceptions of Tensorhold: one for each kind of error, all of them :class:`TensorholdError`.

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
    "TensorholdError",
    "Internal",
    "Invalid",
    "NotFound",
    "PutsFailed",
    "Timeout",
    "Unavailable",
    "Unsupported",
]

Retry = Literal["never", "safe", "ambiguous"]


class TensorholdError(Exception):
    """A Tensorhold call failed. The message says what happened and, where there is something to do, what to do."""

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

    def __reduce__(self) -> tuple[Callable[..., TensorholdError], tuple[Any, ...]]:
        again = partial(type(self), retry=self.retry, operation=self.operation, facts=self.facts)
        return again, (self.message,)


class Invalid(TensorholdError, ValueError):
    """The request itself is wrong; the same request can never succeed."""

    kind = "invalid"


class NotFound(TensorholdError, KeyError):
    """The named sample does not exist, or no longer does. A sample that was lost has ``facts["reason"] == "lost"``."""

    kind = "not found"


class Fenced(TensorholdError, KeyError):
    """The lease or session is no longer valid: the lease was answered or expired, or the sample was taken back."""

    kind = "fenced"


class Conflict(TensorholdError):
    """Another process changed the record first; read it again."""

    kind = "conflict"


class Capacity(TensorholdError, MemoryError):
    """There is no room for it now."""

    kind = "capacity"


class Unavailable(TensorholdError, ConnectionError):
    """The other side did not answer, or said that it cannot serve now."""

    kind = "unavailable"


class DeadlineExceeded(Unavailable, TimeoutError):
    """The other side did not answer within the caller's timeout."""


class Timeout(TensorholdError, TimeoutError):
    """A wait for a condition, such as that everything is freed, ended before the condition was met."""

    kind = "timeout"


class Corrupt(TensorholdError):
    """The bytes are not the committed bytes; they are not returned."""

    kind = "corrupt"


class Denied(TensorholdError, PermissionError):
    """The caller lacks the permission."""

    kind = "denied"


class Unsupported(TensorholdError, NotImplementedError):
    """This engine, this build or this environment cannot do it."""

    kind = "unsupported"


class PutsFailed(TensorholdError):
    """Some puts of a writer failed; ``failed`` says which, and why. The others are not affected."""

    kind = "puts failed"
    failed: dict[str, TensorholdError]
    """The errors, by sample."""

    def __init__(self, failed: Mapping[str, TensorholdError]) -> None:
        first, error = next(iter(failed.items()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        super().__init__(
            f"sample {first!r} was not put{more}: {error.message}",
            retry="ambiguous" if any(one.retry == "ambiguous" for one in failed.values()) else error.retry,
            operation="python.writer",
        )
        self.failed = dict(failed)

    def __reduce__(self) -> tuple[Callable[..., TensorholdError], tuple[Any, ...]]:
        return type(self), (self.failed,)


class Internal(TensorholdError, RuntimeError):
    """A bug in Tensorhold or in the other side."""

    kind = "internal"
