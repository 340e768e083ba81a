"""Renewing certificates as docs/security.md says: an etcd that runs shows the renewed one, and nothing else changes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from alerts_parts import ETCD
from servers import REPOSITORY
from waiting import START_S, until

COMPOSE: Final = REPOSITORY / "deploy/compose"
PAGE: Final = REPOSITORY / "docs/security.md"


def blocks() -> list[str]:
    """The commands of the page that this file runs."""
    found = re.findall(r"<!-- run by: python/tests/test_certificates.py -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == 2, found
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(command: str, folder: Path, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "NAMES": "DNS:localhost,IP:127.0.0.1", **variables}
    done = subprocess.run(["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """What an operator has a year after `prepare`: the certificate of a node ends in ten days."""
    folder = tmp_path / "compose"
    shutil.copytree(COMPOSE, folder, ignore=shutil.ignore_patterns("secrets", "data", ".env"))
    run("./prepare", folder)
    sign = """cd secrets/etcd-0
        openssl x509 -x509toreq -in server.pem -signkey server.key -out request 2>/dev/null
        openssl x509 -req -in request -CA ../authority/clients.pem -CAkey ../authority/clients.key -days 10 -out server.pem \\
            -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\\nsubjectAltName=DNS:localhost,IP:127.0.0.1\\n') 2>/dev/null
        rm request"""
    run(sign, folder)
    return folder


@pytest.fixture
def etcd(prepared: Path, tmp_path: Path) -> Iterator[str]:
    """An etcd with the settings of the compose file. Its address, without the scheme."""
    own, client, peer = prepared / "secrets/etcd-0", f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    command = [str(ETCD / "etcd"), "--name=own", f"--data-dir={tmp_path}/data", "--log-level=error", "--client-cert-auth"]
    command += [f"--listen-client-urls=https://{client}", f"--advertise-client-urls=https://{client}"]
    command += [f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"]
    command += [f"--initial-cluster=own=http://{peer}", f"--trusted-ca-file={own}/ca.pem"]
    command += [f"--cert-file={own}/server.pem", f"--key-file={own}/server.key"]
    with (tmp_path / "etcd.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        until("etcd answers", lambda: answers(prepared, client), START_S)
        yield client
    finally:
        process.kill()
        process.wait()


def answers(folder: Path, server: str) -> bool:
    """Whether a client with the certificate of root is served."""
    secrets = folder / "secrets/root"
    command = [str(ETCD / "etcdctl"), f"--endpoints=https://{server}", f"--cacert={secrets}/ca.pem", f"--cert={secrets}/client.pem"]
    command += [f"--key={secrets}/client.key", "--command-timeout=2s", "endpoint", "health"]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in (folder / "secrets").rglob("*") if path.is_file()}


def ends(folder: Path, server: str) -> float:
    """When the certificate ends that a server shows, by the command of the page."""
    said = run(blocks()[1], folder, SERVER=server)
    return ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter="))


def test_a_certificate_is_renewed_under_an_etcd_that_runs(prepared: Path, etcd: str) -> None:
    before, ended = files(prepared), ends(prepared, etcd)
    run(blocks()[0], prepared)
    after = files(prepared)
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed - {"secrets/authority/clients.srl"} == {"secrets/etcd-0/server.pem", "secrets/etcd-0/server.key"}
    assert ends(prepared, etcd) > ended + 300 * 86400, "it is shown without a restart"
    assert answers(prepared, etcd), "the client's certificate is the one before, and so is the authority"


def test_everything_is_renewed_but_the_authorities(prepared: Path, etcd: str) -> None:
    before = files(prepared)
    run("./prepare", prepared, RENEW="366")
    after = files(prepared)
    same = {name for name in after if before[name] == after[name] and name.endswith((".pem", ".key"))}
    kept = {name for name in same if not name.endswith(("/ca.pem", "/peer-ca.pem"))}
    assert kept == {f"secrets/authority/{name}" for name in ("clients.pem", "clients.key", "peers.pem", "peers.key")} | {
        "secrets/a/store.key",
        "secrets/b/store.key",
    }
    assert answers(prepared, etcd)


def test_without_its_authority_nothing_is_renewed(prepared: Path) -> None:
    shutil.rmtree(prepared / "secrets/authority")
    before = files(prepared)
    done = subprocess.run(["./prepare"], cwd=prepared, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "put that folder back" in done.stderr, done.stderr
    assert files(prepared) == before
