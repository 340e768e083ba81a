"""Settings: one file means the same to ``tensorhold.open`` and to the command. No server is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tensorhold
from test_command import answer

FILE = """
store = "run-7"
etcd = "https://etcd-1:2379,https://etcd-2:2379/"
master = "mooncake:50051"
environment = { MC_A = "1" }
budget = "2GiB"
lease_seconds = 90
timeout = "45s"
checksum = false
key = "file:/key"

[etcd_options]
user = "u"
password = "env:PASSWORD"
tls.ca = "/ca.pem"
try_timeout = 0.5

[index]
tick = "500ms"
dead_ticks = 7

[features]
adopt_prefixes = ["verl/"]
call_within = "2m"

[prefetch]
dram_below = 0.5

[engine]
client_http_port = "none"
idle_waits = "off"

[[steward.stores]]
store = "run-7"
"""

ELSEWHERE = ("steward.", "external_sample_bytes", "key")
"""Settings that are not in :class:`tensorhold.Settings`, or in another form."""


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cluster of ``tensorhold up`` on this machine would be found, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def in_python(settings: tensorhold.Settings, path: str) -> Any:
    """The value of a setting, as JSON has it; None if nothing gives it."""
    value: Any = settings
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
        if value is None:
            return None
    if isinstance(value, tensorhold.Secret):
        return value.reference
    return list(value) if isinstance(value, tuple) else value


def test_python_and_the_command_read_one_file_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tensorhold.toml"
    file.write_text(FILE)
    monkeypatch.setenv("TENSORHOLD_CONFIG", str(file))
    monkeypatch.setenv("TENSORHOLD_POOL_BYTES", "64MiB")
    monkeypatch.setenv("TENSORHOLD_SWEEP_EVERY", "none")
    monkeypatch.setenv("TENSORHOLD_FEATURES_STREAMS", "3")
    settings = tensorhold.open(lazy=True).settings
    shown = {item["setting"]: item for item in answer(None, "settings")["items"]}
    given = [path for path, item in shown.items() if item["from"] != "default" and not path.startswith(ELSEWHERE)]
    assert len(given) == 22, given
    for path in given:
        value = shown[path]["value"]
        # A PEM that is a path is a reference for Python.
        value = f"file:{value}" if path == "etcd_options.tls.ca" else value
        assert in_python(settings, path) == value, path
    assert (settings.pool_bytes, settings.sweep_every, settings.index["tick"]) == (64 << 20, None, 0.5)
    assert shown["key"]["value"] == "file:/key" and settings.native_keys() == ("default", [("default", "file:/key")])


def test_defaults_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tensorhold.Settings("")
    for item in answer(None, "settings")["items"]:
        path, value = item["setting"], item["value"]
        if "." in path or path.startswith(ELSEWHERE):
            continue
        expected = in_python(usual, path)
        if path == "admin":
            expected = ["http://127.0.0.1:9003"]
        assert item["from"] == "default" and (value or None) == (expected or None), item


def test_what_is_given_counts_more_and_sections_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORHOLD_STORE", "by-variable")
    monkeypatch.setenv("TENSORHOLD_INDEX_TICK", "2s")
    monkeypatch.setenv("TENSORHOLD_INDEX_DEAD_TICKS", "7")
    monkeypatch.setenv("TENSORHOLD_SWEEP_EVERY", "none")
    monkeypatch.setenv("TENSORHOLD_KEY", "file:/old")
    monkeypatch.setenv("TENSORHOLD_KEY_ID", "old")
    found = tensorhold.open(lazy=True).settings
    assert (found.store, found.sweep_every, found.index) == ("by-variable", None, {"tick": 2.0, "dead_ticks": 7})
    assert found.native_keys() == ("old", [("old", "file:/old")])
    given = tensorhold.open("given", sweep_every=3.0, index={"tick": 1.5}, key="file:/new", lazy=True).settings
    assert (given.store, given.sweep_every, given.index) == ("given", 3.0, {"tick": 1.5, "dead_ticks": 7})
    assert given.native_keys() == ("default", [("default", "file:/new")]), "not another key's id"


def test_what_is_wrong_is_said_and_no_value_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(tensorhold.Invalid, match="TENSORHOLD_STORE"):
        tensorhold.open(lazy=True)
    file = tmp_path / "tensorhold.toml"
    monkeypatch.setenv("TENSORHOLD_CONFIG", str(file))
    file.write_text("[index]\ntik = 'hunter2'")
    with pytest.raises(tensorhold.Invalid, match="no such setting") as refused:
        tensorhold.open("x", lazy=True)
    assert refused.value.facts == {"setting": "index.tik", "from": "file:2", "nearest": "index.tick"}
    assert "hunter2" not in str(refused.value)
