"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PROMPTLY_S: Final = 10.0
"""Enough for what ends by itself as soon as its caller has left."""
START_S: Final = 60.0
"""Enough for a server to start, on a machine that does other things too."""


def until(what: str, holds: Callable[[], bool], within: float = PROMPTLY_S) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to pass: {what}"
        time.sleep(0.02)
