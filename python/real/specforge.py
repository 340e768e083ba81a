"""A real ``specforge train`` on Tensorhold: ``cargo xtask real specforge [--json]``.

Offline, on SpecForge's own store and on Tensorhold: the losses have to be the same, float for float. Online, with two capture
servers and two ranks. A run of which some processes use the one store and some the other: refused. A server, a trainer, a
rank and everything are killed; runs are resumed as SpecForge resumes them. In the end the stores are ended, and nothing of
them is left in Mooncake.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real import faults, processes, specforge_assets
from real.program import Program, run

SAMPLES = 64
LOSS = re.compile(r"^step (\d+): .*'loss': ([0-9.e+-]+|nan)", re.MULTILINE)
NAMED = re.compile(r"process (\d+) keeps the samples of")
TENSORHOLD = "tensorhold.specforge"
PLAIN = "specforge.cli"


def environment(cluster: Any) -> dict[str, str]:
    """What every process of a run on a CPU needs."""
    found = processes.environment(
        SPECFORGE_DEVICE="cpu",
        TORCHDYNAMO_DISABLE="1",
        MOONCAKE_METADATA_SERVER=cluster.metadata,
        MOONCAKE_MASTER_SERVER_ADDR=cluster.master,
        **cluster.variables(),
    )
    found["PYTHONPATH"] = os.pathsep.join([str(processes.HERE / "specforge_shims"), found["PYTHONPATH"]])
    return found


class Run:
    """Processes of one SpecForge run."""

    def __init__(self, folder: Path, name: str, cluster: Any, **how: Any) -> None:
        self.name = name
        self.output = folder / name / "out"
        self._cluster = cluster
        self._file = folder / f"{name}.json"
        self._file.write_text(json.dumps(specforge_assets.config(folder, name, cluster, **how)))

    def latest(self) -> Path:
        """Its last checkpoint: what SpecForge resumes from."""
        return self.output / f"{self.name}-latest"

    def checkpointed(self) -> int:
        """The step of its last checkpoint."""
        return int(self.latest().readlink().name.rpartition("step")[2]) if self.latest().is_symlink() else 0

    @contextmanager
    def started(self, log: Path, module: str = TENSORHOLD, role: str = "auto") -> Iterator[subprocess.Popen[bytes]]:
        """``MODULE train``, by its own command."""
        command = [sys.executable, "-m", module, "train", "-c", str(self._file), "--role", role]
        with processes.started(command, environment(self._cluster), log) as process:
            yield process

    def train(self, log: Path, module: str = TENSORHOLD) -> int:
        """Runs it to its end. Returns its exit code."""
        with self.started(log, module) as process:
            return ended(process, log)


def ended(process: subprocess.Popen[bytes], log: Path) -> int:
    """Waits for a process. Returns its exit code."""
    try:
        return process.wait(processes.WITHIN_S)
    except subprocess.TimeoutExpired:
        raise processes.Stuck(f"SpecForge has not ended:\n{processes.end_of(log)}") from None


def reaches(step: int, latest: Callable[[], int], log: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits until a trainer has come to this step."""
    deadline = time.monotonic() + processes.WITHIN_S
    while latest() < step:
        if process.poll() is not None:
            raise processes.Failed(f"the trainer ended before step {step}:\n{processes.end_of(log)}")
        if time.monotonic() > deadline:
            raise processes.Stuck(f"the trainer does not reach step {step}:\n{processes.end_of(log)}")
        time.sleep(0.02)


def trained(log: Path) -> Callable[[], int]:
    """Asks for the last step in a log."""
    return lambda: max(losses(log), default=0)


def losses(log: Path) -> dict[int, str]:
    """The losses of a run as they were printed, by step."""
    return {int(step): loss for step, loss in LOSS.findall(processes.logged(log))}


def on_tensorhold(log: Path) -> list[int]:
    """The processes that said that their samples are in Tensorhold."""
    return sorted({int(pid) for pid in NAMED.findall(processes.logged(log))})


@dataclass(frozen=True)
class Servers:
    """Capture servers that are up."""

    urls: list[str]
    processes: list[subprocess.Popen[bytes]]


@contextmanager
def capture_servers(folder: Path, count: int, environment: dict[str, str], scratch: Path) -> Iterator[Servers]:
    """Capture servers, up inside the block and gone after it."""
    ports = processes.free_ports(count)
    started = []
    with ExitStack() as stack:
        for port in ports:
            command = [sys.executable, "-m", "real.specforge_server", str(port), str(folder)]
            log = scratch / f"capture-{port}.log"
            process = stack.enter_context(processes.started(command, environment, log))
            started.append(process)
            deadline = time.monotonic() + processes.WITHIN_S
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise processes.Failed(f"a capture server is not up:\n{processes.end_of(log)}")
                time.sleep(0.2)
        yield Servers([f"http://127.0.0.1:{port}" for port in ports], started)


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except OSError:
        return False
    return True


def keys_left(cluster: Any) -> int:
    """How many objects the cluster's master has."""
    with urllib.request.urlopen(f"{cluster.admin[0]}/metrics", timeout=10) as answer:
        found = re.search(r"^master_key_count ([0-9.e+]+)", answer.read().decode(), re.MULTILINE)
    if found is None:
        raise processes.Failed("the master does not say how many objects it has")
    return int(float(found.group(1)))


def end_store(name: str, cluster: Any) -> int:
    """Ends a store whose processes are gone, or will be when their sessions have ended."""
    import tensorhold

    deadline = time.monotonic() + 120
    with tensorhold.open(name, pool_bytes=16 << 20, **cluster.settings()) as store:
        while True:
            try:
                return store.end(timeout=60)
            except tensorhold.Conflict:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)


def cases(program: Program) -> None:
    scratch, cluster = program.scratch, program.cluster
    folder = specforge_assets.make(scratch / "assets", SAMPLES)
    before = 0

    with program.case("offline") as figures:
        logs = {module: scratch / f"offline-{module}.log" for module in (PLAIN, TENSORHOLD)}
        begun = time.monotonic()
        codes = [Run(folder, "plain", cluster).train(logs[PLAIN], PLAIN)]
        before = keys_left(cluster)  # whatever SpecForge's own store has left
        codes.append(Run(folder, "offline", cluster).train(logs[TENSORHOLD]))
        plain, held = losses(logs[PLAIN]), losses(logs[TENSORHOLD])
        figures |= {
            "ended_well": codes == [0, 0],
            "losses_equal": bool(plain) and plain == held,
            "losses": len(held),
            "samples": SAMPLES,
            "named_the_store": len(on_tensorhold(logs[TENSORHOLD])) == 2 and not on_tensorhold(logs[PLAIN]),
            "seconds": round(time.monotonic() - begun, 1),
        }

    with program.case("online, two servers and two ranks") as figures:
        log = scratch / "online.log"
        with capture_servers(folder, 2, environment(cluster), scratch) as servers:
            code = Run(folder, "online", cluster, servers=servers.urls, ranks=2).train(log)
        figures |= {"ended_well": code == 0, "steps": len(losses(log)), "named_the_store": len(on_tensorhold(log)) == 3}

    with program.case("a mixed run") as figures:
        mixed = Run(folder, "mixed", cluster)
        producing, consuming = scratch / "mixed-producer.log", scratch / "mixed-consumer.log"
        with mixed.started(producing, TENSORHOLD, "producer"), mixed.started(consuming, PLAIN, "consumer") as consumer:
            code = ended(consumer, consuming)
        said = "python -m tensorhold.specforge" in processes.logged(consuming)
        figures |= {"refused": code != 0, "said_why": said, "steps": len(losses(consuming))}

    kills(program, folder)

    with program.case("the stores are ended") as figures:
        names = ("offline", "online", "mixed", "server", "trainer", "rank", "producer", "everything")
        figures["samples_ended"] = sum(end_store(name, cluster) for name in names)
        figures["keys_left"] = keys_left(cluster) - before
        figures["nothing_left"] = figures["keys_left"] == 0
        if not figures["nothing_left"]:
            figures["left"] = faults.keys(cluster)[:8]


def kills(program: Program, folder: Path) -> None:
    """Processes of online runs are killed, one kind after the other, and runs are resumed as SpecForge resumes them."""
    scratch, cluster = program.scratch, program.cluster
    steps = SAMPLES // 4

    with program.case("a server is killed") as figures:
        log = scratch / "server.log"
        with capture_servers(folder, 2, environment(cluster), scratch) as servers:
            with Run(folder, "server", cluster, servers=servers.urls).started(log) as process:
                reaches(2, trained(log), log, process)
                servers.processes[0].kill()
                code = ended(process, log)
        # SpecForge asks a server that is gone four times, and gives prompts up that met no other meanwhile.
        gave_up = "terminally failed prompt" in processes.logged(log)
        figures |= {"kills": 1, "trained": len(losses(log)), "prompts_given_up": int(gave_up)}
        figures["ended_well"] = (code == 0 and len(losses(log)) == steps) or gave_up

    with program.case("the trainer is killed, and the run resumed") as figures:
        producing, consuming, resumed = (scratch / f"trainer-{part}.log" for part in ("producer", "first", "second"))
        with capture_servers(folder, 2, environment(cluster), scratch) as servers:
            first = Run(folder, "trainer", cluster, servers=servers.urls, training={"save_interval": 1})
            with first.started(producing, role="producer") as producer:
                with first.started(consuming, role="consumer") as consumer:
                    # Right behind a checkpoint: SpecForge resumes only if nothing was acknowledged after it.
                    reaches(3, first.checkpointed, consuming, consumer)
                    os.kill(on_tensorhold(consuming)[-1], signal.SIGKILL)
                    died = ended(consumer, consuming) != 0
                again = {"save_interval": 1, "resume_from": str(first.latest())}
                second = Run(folder, "trainer", cluster, servers=servers.urls, training=again)
                with second.started(resumed, role="consumer") as consumer:
                    codes = [ended(consumer, resumed), ended(producer, producing)]
        both = set(losses(consuming)) | set(losses(resumed))
        figures |= {"kills": 1, "died": died, "ended_well": codes == [0, 0]}
        figures["all_trained"] = both == set(range(1, steps + 1))
        if codes != [0, 0]:
            figures["said"] = [processes.logged(log)[-400:] for log in (resumed, producing)]

    # The rank that is left tells the producer, which ends, too: SpecForge does not resume such a run.
    for name, role in (("rank", "consumer"), ("producer", "producer")):
        with program.case(f"a {name} is killed") as figures:
            logs = {role: scratch / f"{name}-{role}.log" for role in ("producer", "consumer")}
            with capture_servers(folder, 2, environment(cluster), scratch) as servers:
                run_ = Run(folder, name, cluster, servers=servers.urls, ranks=2)
                with (
                    run_.started(logs["producer"], role="producer") as producer,
                    run_.started(logs["consumer"], role="consumer") as consumer,
                ):
                    reaches(2, trained(logs["consumer"]), logs["consumer"], consumer)
                    os.kill(on_tensorhold(logs[role])[-1], signal.SIGKILL)
                    killed = {"producer": producer, "consumer": consumer}[role]
                    died = ended(killed, logs[role]) != 0
            figures |= {"kills": 1, "died": died} | freed(name, cluster)

    with program.case("everything is killed") as figures:
        log = scratch / "everything.log"
        with capture_servers(folder, 2, environment(cluster), scratch) as servers:
            with Run(folder, "everything", cluster, servers=servers.urls).started(log) as process:
                reaches(3, trained(log), log, process)
        figures |= {"kills": 1, "keys_after_the_kill": keys_left(cluster)} | freed("everything", cluster)


def freed(name: str, cluster: Any) -> dict[str, Any]:
    """Ends the store of a run whose processes were all killed just now: what that took."""
    killed = time.monotonic()
    return {"samples_ended": end_store(name, cluster), "orphans_gone_s": round(time.monotonic() - killed, 1)}


def figures_of(program: Program) -> dict[str, Any]:
    """The figures of SpecForge's cases."""
    found = program.cases
    return {
        "losses_equal": found["offline"].get("losses_equal", False),
        "samples": SAMPLES,
        "keys_left": found["the stores are ended"].get("keys_left"),
        "orphans_gone_s": max((case.get("orphans_gone_s", 0.0) for case in found.values())),
        "kills": sum(case.get("kills", 0) for case in found.values()),
        "stuck": program.stuck,
        "cases": found,
    }


if __name__ == "__main__":
    run(__doc__, cases, figures_of)
