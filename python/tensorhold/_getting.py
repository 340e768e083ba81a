"""Gets for frameworks that give up a batch at the first error: bytes that may come back are waited for, and a lease
that has ended is taken again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tensorhold.errors import Fenced, Unavailable

log: Final = logging.getLogger("tensorhold")

T = TypeVar("T")

_LOOK_AGAIN_S: Final = 0.25
_VERDICT_WITHIN_S: Final = 5.0
"""How long after the loss grace the verdict may come: the store checks at least every two seconds."""


def get_waiting(get: Callable[[], T]) -> T:
    """Gets tensors. Bytes that the engine does not have now come back if their holder registers again; until the loss
    grace has ended, it is unknown whether it will. So the get is retried until there is a verdict, or should have been
    one."""
    give_up: float | None = None
    while True:
        try:
            return get()
        except Unavailable as error:
            if error.facts.get("reason") != "missing":
                raise
            now = time.monotonic()
            if give_up is None:
                give_up = now + float(error.facts.get("loss_grace_s", 0)) + _VERDICT_WITHIN_S
            if now >= give_up:
                raise
        time.sleep(_LOOK_AGAIN_S)


def again_if_fenced(read_and_get: Callable[[], T]) -> T:
    """Reads and gets, and does both once more if the lease ended during the get. An ended lease alone does not show
    that the sample is gone: this process may have been cut off for a while, or a newer sample has the key. The second
    read shows which."""
    try:
        return read_and_get()
    except Fenced as error:
        log.debug("a sample is read again: %s", error)
    return read_and_get()
