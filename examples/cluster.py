"""What the examples do if there is no cluster, and the names of their stores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import tensorhold

WHAT_TO_DO = """Start a cluster on this machine, and tell this shell where it is:

    tensorhold up
    eval "$(tensorhold env)"
"""


def run(main: Callable[[], None]) -> None:
    """Runs an example. If no cluster answers, it ends with what to do."""
    try:
        main()
    except tensorhold.Unavailable as error:
        sys.exit(f"No cluster answers: {error}\n{WHAT_TO_DO}")


def store_name(example: str) -> str:
    """A store of this run's own: what a run that was interrupted has left is not in its way."""
    return f"{example}-{os.getpid()}"
