"""The console script ``holdfast``. ``docs/command.md`` describes the command; ``python -m holdfast`` is the same."""

from __future__ import annotations

import signal
import sys

from holdfast import _holdfast

__all__ = ["main"]


def main() -> int:
    """Runs the command with the arguments of this process. Returns its exit code."""
    # Python would note a Ctrl-C and wait for the command to come back.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _holdfast.run_command(["holdfast", *sys.argv[1:]], sys.executable)
