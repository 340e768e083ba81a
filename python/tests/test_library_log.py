"""What Mooncake's library writes to standard error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from servers import Cluster

PROGRAM = """
import sys
import tensorhold
with tensorhold.open(sys.argv[1]) as store:
    store.put("x", {"x": b"some bytes"}, groups=())
    store.end()
"""


def steps(cluster: Cluster, store: str, **variables: str) -> list[str]:
    """The lines about what the library does, and not about what went wrong."""
    environment = {**os.environ, **cluster.variables(), "PYTHONPATH": str(Path(__file__).parents[1])}
    environment.pop("MC_LOG_LEVEL", None)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, store],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**environment, **variables},
    )
    return re.findall(r"^[IW]\d{4} .*$", ran.stderr, flags=re.MULTILINE)


def test_it_is_silent_about_its_steps_unless_it_is_asked(cluster: Cluster, store_name: str) -> None:
    assert steps(cluster, store_name) == []
    assert steps(cluster, store_name, MC_LOG_LEVEL="INFO") != []
