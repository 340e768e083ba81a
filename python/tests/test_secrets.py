"""Passwords and keys: nothing that is shown, raised, pickled or written down holds one."""

from __future__ import annotations

import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

import tensorhold
from tensorhold._environment import merged, settings_beside

PASSWORD = "hunter2-of-etcd"
PRIVATE = "-----BEGIN PRIVATE KEY-----\nhunter3\n-----END PRIVATE KEY-----"
KEY = bytes(range(7, 39))


@pytest.mark.parametrize(
    "options",
    [
        {"user": "root", "password": 987654321},
        {"tls": PRIVATE},
        {"tls": {"key": 987654321}},
        {"tls": {"server_name": {"hunter3": 987654321}}},
        {"user": [PASSWORD, "hunter3"]},
        {"password": {"hunter2-of-etcd": 987654321}},
        {"user": "u", "password": PASSWORD},  # over http
        {"user": 987654321, "password": PASSWORD, "allow_plain_password": True},
    ],
)
def test_no_exception_repeats_a_secret(options: dict[str, Any]) -> None:
    with pytest.raises(tensorhold.Invalid) as refused:
        tensorhold.open("x", etcd_options=options)
    told = "".join(traceback.format_exception_only(refused.value)) + repr(refused.value.facts)
    assert not any(secret in told for secret in ("hunter", "987654321")), told


def test_a_password_does_not_go_over_plain_http_unless_a_setting_says_so() -> None:
    with pytest.raises(tensorhold.Invalid, match="allow_plain_password"):
        tensorhold.open("x", etcd="http://127.0.0.1:1", etcd_options={"user": "u", "password": PASSWORD})
    with pytest.raises(tensorhold.Unavailable):  # the settings are fine; no server is there
        tensorhold.open(
            "x",
            master="127.0.0.1:1",
            etcd="http://127.0.0.1:1",
            etcd_options={"user": "u", "password": PASSWORD, "allow_plain_password": True},
            timeout=2,
        )


def test_a_literal_secret_is_not_in_json_or_pickles_and_a_reference_is() -> None:
    literal = {"user": "u", "password": PASSWORD, "tls": {"key": PRIVATE, "ca": "/ca.pem"}}
    store = tensorhold.open("x", etcd_options=literal, key=KEY, lazy=True)
    shown = f"{store!r} {store.settings!r} {store.settings.etcd_options!r} {store.settings.to_json()}"
    assert "hunter" not in shown
    written = json.loads(store.settings.to_json())["etcd"]
    assert "password" not in written and written["tls"] == {"ca": "file:/ca.pem"}
    for whole in (store, store.settings, store.settings.etcd_options, store.settings.keys):
        with pytest.raises(tensorhold.Invalid, match="env:NAME") as refused:
            pickle.dumps(whole)
        assert "hunter" not in str(refused.value)

    references = {"user": "u", "password": "env:ETCD_PASSWORD", "tls": {"key": "file:/key.pem"}}
    store = tensorhold.open("x", etcd_options=references, key="env:STORE_KEY", lazy=True)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.settings == store.settings
    written = json.loads(copy.settings.to_json())["etcd"]
    assert (written["password"], written["tls"]) == ("env:ETCD_PASSWORD", {"key": "file:/key.pem"})
    assert copy.settings.native_keys() == ("default", [("default", "env:STORE_KEY")])


def test_a_secret_is_itself_or_where_it_is(tmp_path: Path) -> None:
    assert repr(tensorhold.Secret(PASSWORD)) == repr(tensorhold.Secret(KEY)) == "Secret(hidden)"
    assert repr(tensorhold.Secret.env("A")) == "Secret('env:A')" and str(tensorhold.Secret.env("A")) == "Secret('env:A')"
    assert tensorhold.Secret.file(tmp_path) == tensorhold.Secret(tmp_path) == tensorhold.Secret(f"file:{tmp_path}")
    assert tensorhold.Secret.literal("env:A").is_literal and tensorhold.Secret.literal("env:A") != tensorhold.Secret("env:A")
    assert tensorhold.Secret(tensorhold.Secret.literal("env:A")).reference is None
    assert pickle.loads(pickle.dumps(tensorhold.Secret.env("A"))) == tensorhold.Secret("env:A")
    with pytest.raises(tensorhold.Invalid, match="not int") as refused:
        tensorhold.Secret(987654321)  # type: ignore[arg-type]
    assert "987654321" not in str(refused.value)


def test_launchers_tell_how_etcd_lets_them_in_by_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_beside([]) == {}
    monkeypatch.setenv("TENSORHOLD_ETCD_USER", "u")
    monkeypatch.setenv("TENSORHOLD_ETCD_PASSWORD", PASSWORD)
    monkeypatch.setenv("TENSORHOLD_ETCD_CA", "/ca.pem")
    monkeypatch.setenv("TENSORHOLD_ETCD_CERTIFICATE", "/me.pem")
    monkeypatch.setenv("TENSORHOLD_ETCD_PRIVATE_KEY", "file:/me.key")
    options = settings_beside([])["etcd_options"]
    assert options == {
        "user": "u",
        "password": "env:TENSORHOLD_ETCD_PASSWORD",
        "tls": {"ca": "/ca.pem", "certificate": "/me.pem", "key": "file:/me.key"},
    }
    store = tensorhold.open("x", etcd="https://a:1", etcd_options=options, lazy=True)
    assert pickle.loads(pickle.dumps(store)).settings == store.settings
    monkeypatch.setenv("TENSORHOLD_ETCD_PASSWORD", "file:/password")
    assert settings_beside([])["etcd_options"]["password"] == "file:/password"


def test_a_store_finds_its_cluster_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # a cluster of `tensorhold up` would be found, too
    assert tensorhold.open("x", lazy=True).settings == tensorhold.Settings("x")
    monkeypatch.setenv("TENSORHOLD_MASTER", "here:1")
    monkeypatch.setenv("TENSORHOLD_ADMIN", "http://here:2,http://here:3")
    monkeypatch.setenv("TENSORHOLD_ETCD", "https://here:4")
    monkeypatch.setenv("TENSORHOLD_ETCD_USER", "u")
    found = tensorhold.open("x", lazy=True).settings
    assert (found.master, found.admin) == ("here:1", ("http://here:2", "http://here:3"))
    assert (found.etcd, found.etcd_options) == (("https://here:4",), {"user": "u"})
    # What is given is never mixed with what may be another cluster's.
    other = tensorhold.open("x", master="there:1", etcd="https://there:4", lazy=True).settings
    assert other == tensorhold.Settings("x", master="there:1", etcd=("https://there:4",))
    # An admin address alone says where the master of the environment listens, too.
    told = tensorhold.open("x", admin="http://there:2", etcd_options={"user": "v"}, lazy=True).settings
    assert (told.master, told.admin) == ("here:1", ("http://there:2",))
    assert (told.etcd, told.etcd_options) == (("https://here:4",), {"user": "v"})


def test_a_key_with_a_preamble_is_text_and_not_a_path() -> None:
    exported = f"Bag Attributes\n    friendlyName: client\n{PRIVATE}"
    settings = tensorhold.Settings("s", etcd_options={"tls": {"certificate": exported, "key": exported}})
    assert "hunter3" not in repr(settings) + settings.to_json()
    told = tensorhold.Settings("s", etcd_options={"tls": {"key": tensorhold.Secret.literal("hunter3"), "certificate": "c.pem"}})
    assert "hunter3" not in repr(told) + told.to_json()


def test_settings_that_are_taken_for_a_path_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORHOLD_CONFIG", f"etcd_options.password = '{PASSWORD}'")
    with pytest.raises(tensorhold.Invalid) as refused:
        settings_beside([])
    assert PASSWORD not in "".join(traceback.format_exception(refused.value)) + repr(refused.value.facts)


def test_a_secret_of_a_file_stays_in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tensorhold.toml"
    file.write_text(f"etcd_options = {{ user = 'u', password = '{PASSWORD}' }}")
    monkeypatch.setenv("TENSORHOLD_CONFIG", str(file))
    file.chmod(0o644)
    with pytest.raises(tensorhold.Invalid, match="others may read") as refused:
        tensorhold.open("x", lazy=True)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))
    file.chmod(0o600)
    store = tensorhold.open("x", lazy=True)
    assert PASSWORD not in repr(store.settings) + store.settings.to_json()
    with pytest.raises(tensorhold.Invalid, match="env:NAME"):
        pickle.dumps(store)


def test_layers_of_settings_are_merged_at_every_depth() -> None:
    below = {"etcd_options": {"tls": {"certificate": "c.pem", "key": "k.pem"}, "user": "u"}}
    above = {"etcd_options": {"tls": {"ca": "ca.pem"}}}
    both = {"certificate": "c.pem", "key": "k.pem", "ca": "ca.pem"}
    assert merged(below, above) == {"etcd_options": {"tls": both, "user": "u"}}
