"""The steward's admin interface against its own description: schemathesis sends what follows from it, right and wrong.

For longer: ``TENSORHOLD_EXAMPLES=300 TENSORHOLD_SEED=1`` in the environment."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorhold
from servers import Cluster
from steward import WITHIN_S, Steward, running_steward
from waiting import until

SCHEMATHESIS = Path(sys.executable).with_name("st")
SEED = os.environ.get("TENSORHOLD_SEED", "20261117")
EXAMPLES = int(os.environ.get("TENSORHOLD_EXAMPLES", "8"))
"""For each operation."""
SECRETS = {"all": "th_for-all-stores", "scratch": "th_for-one-store", "eyes": "th_looks-only", "old": "th_expired"}


@dataclass(frozen=True)
class Served:
    """A steward, a store of its own with samples in every state that lasts, and the description that it gives."""

    steward: Steward
    store: str
    document: dict[str, Any]

    def named(self) -> dict[str, Any]:
        """The description, for the store and the samples that there are. Otherwise no name would be met by chance."""
        document = copy.deepcopy(self.document)
        samples = ["live-0", "live-1", "dead-0", "dead-1", "nobody"]
        for path in document["paths"].values():
            for operation in path.values():
                for parameter in operation["parameters"]:
                    if parameter["name"] == "store":
                        parameter["schema"] = {"enum": [self.store]}
                    elif parameter["name"] == "sample":
                        parameter["schema"] = {"enum": samples}
        items = document["components"]["schemas"]["Samples"]["properties"]["samples"]
        items["items"] = {"anyOf": [{"enum": samples}, {"type": "string"}]}
        return document


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(SECRETS[name].encode()).hexdigest(), **more}


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    name = "admin-api"
    tokens = [
        entry("all", write=True),
        entry("scratch", write=True, stores=[name]),
        entry("eyes", stores=[name]),
        entry("old", write=True, expires=1),
    ]
    stores = [{"store": name}, {"store": "admin-api-other"}]
    options = {"stores": stores, "look_every": "1s", "http": {"tokens": tokens, "within": "20s"}}
    with tensorhold.open(name, sweep_every=None, pool_bytes=16 << 20, index={"dead_ticks": 3600}, **cluster.settings()) as store:
        for number in range(2):
            store.put(f"live-{number}", {"x": b"committed"}, groups=["g"])
        for number in range(2):
            store.put(f"dead-{number}", {"x": b"committed"}, groups=["h"], max_attempts=1)
        for lease in store.take("h", count=2):
            lease.nack()
        with running_steward(cluster, options, token=SECRETS["all"]) as steward:
            until("its stores are open", steward.ready, WITHIN_S)
            assert len(steward.value(f"/v1/stores/{name}/dead")["items"]) == 2
            yield Served(steward, name, steward.value("/v1/openapi.json"))


def schemathesis(served: Served, folder: Path, document: dict[str, Any], token: str | None, *options: str) -> int:
    """Runs it, and returns how many requests it made. Whatever it finds fails the test, with its own words."""
    described = folder / "openapi.json"
    described.write_text(json.dumps(document))
    command = [str(SCHEMATHESIS), "run", str(described), "--url", served.steward.url, "--no-color", "--seed", SEED]
    # A stream of events lasts. A busy machine is no fault of the description.
    command += ["--checks", "all", "--exclude-path", "/v1/events", "--suppress-health-check", "too_slow"]
    command += ["--generation-database", "none", "--request-timeout", "30", "--continue-on-failure", *options]
    if token:
        command += ["--header", f"Authorization: Bearer {SECRETS[token]}"]
    begun = time.monotonic()
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60 + 6 * EXAMPLES)
    took = time.monotonic() - begun
    print(ran.stdout, ran.stderr)
    made = re.search(r"(\d+) generated", ran.stdout)
    assert ran.returncode == 0 and made, ran.stdout[-20_000:] + ran.stderr
    print(f"schemathesis: {made[1]} cases in {took:.1f} s")
    return int(made[1])


def test_every_answer_is_as_described(served: Served, tmp_path: Path) -> None:
    """Right and wrong requests, also those that change the store: no 5xx, no answer that the description does not have."""
    made = schemathesis(served, tmp_path, served.named(), "all", "--max-examples", str(EXAMPLES))
    assert made > 300


def test_names_that_nothing_has_are_refused_as_described(served: Served, tmp_path: Path) -> None:
    phases = ("--phases", "fuzzing", "--max-examples", str(EXAMPLES // 2), "--include-path-regex", "[{]")
    assert schemathesis(served, tmp_path, served.document, "all", *phases) > 25


@pytest.mark.parametrize("token", [None, "eyes"])
def test_a_token_that_may_not_is_refused_as_described(served: Served, tmp_path: Path, token: str | None) -> None:
    before = served.steward.value(f"/v1/stores/{served.store}/budget")
    # It takes 403 for an answer that needs no token.
    phases = ("--phases", "fuzzing", "--max-examples", "3", "--exclude-checks", "ignored_auth")
    assert schemathesis(served, tmp_path, served.named(), token, *phases) > 25
    assert served.steward.value(f"/v1/stores/{served.store}/budget") == before


def test_the_log_has_no_secrets(served: Served) -> None:
    log = "".join(served.steward.log)
    assert len(log.splitlines()) > 500, "the tests above come first"
    assert '"/v1/stores/admin-api/budget"' in log or "/v1/stores/admin-api/budget" in log
    for secret in [*SECRETS.values(), "th_", "older_than=", *(hashlib.sha256(one.encode()).hexdigest() for one in SECRETS.values())]:
        assert secret not in log
