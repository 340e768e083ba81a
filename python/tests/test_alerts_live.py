"""Alerts and dashboard on live servers: a Prometheus scrapes a steward and a client, and each alert is fired by its cause.

The rules are those of ``ops/prometheus/rules.yml`` with their times divided by 60 (``alerts_parts.faster_rules``): a rule that
waits for five minutes waits for five seconds. Nothing else of them is changed, and no metric is made up: whatever is
wrong is done to real servers. There are a master with two holders, an etcd of one node with a small quota, a steward and
a client process, shared by all tests of this file; the tests that break most come last, in the order of the file.

=============================  ===========================================================================
alert                          its cause here
=============================  ===========================================================================
TensorholdStewardAbsent          the only steward is killed (SIGKILL)
TensorholdProcessNotScraped      the same
TensorholdStewardStoreClosed     a second steward that is told a master that is not there
TensorholdNobodySweeps           a store without a steward whose only process has ``sweep_every=None``
TensorholdBudgetExhausted        samples take the budget, and a producer waits for more of it
TensorholdProducersStuck         the same: nothing is put
TensorholdCorruptGets            a byte of an object is changed in the engine
TensorholdBadPages               a byte of a KV page is changed in the engine
TensorholdRecordsQuarantined     a broken record is written with etcdctl
TensorholdDeadLetters            a consumer hands a sample back until it is out of attempts
TensorholdOrphansFound           an object is back after its sample was freed
TensorholdAuditTrouble           an object of a generation that this index has not given out: the audit is refused
TensorholdSamplesLost            a holder is killed
TensorholdEngineFailing          the same: reads fail until the master gives the holder up
TensorholdHolderMissing          the same: the master lists it no more
TensorholdDramNearFull           the same: the samples that were in both holders, and more, fill the one that is left
TensorholdMasterFailedOver       the leader of two masters of another cluster is killed
TensorholdMooncakeEtcdNearQuota  as TensorholdEtcdNearQuota, of an etcd that is scraped as Mooncake's
TensorholdReclaimSlow            the master is stopped again and again while samples are acknowledged: they are freed when it goes on
TensorholdFreesFailing           the master is stopped (SIGSTOP) while samples are acknowledged
TensorholdFreesPending           the same
TensorholdSessionsReopened       the client's etcd lease is revoked with etcdctl, again and again
TensorholdIndexAmbiguous         etcd is stopped again and again, for a second each time, while eight threads write
TensorholdIndexFailing           etcd is stopped
TensorholdEtcdNodeSilent         the same
TensorholdEtcdNearQuota          other data fills etcd to four fifths of its quota
TensorholdEtcdFull               other data fills it up
TensorholdSweepsFailing          the same: the clock cannot be moved
TensorholdIndexRefuses           etcd is replaced by an empty one at the same address
=============================  ===========================================================================

All of it takes about three minutes. ``.ci/run`` has the short form, without the tests that are marked ``only_in_full``;
``TENSORHOLD_ALL_ALERTS=1`` in the environment runs all.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import alerts_client
from alerts_parts import (
    DASHBOARD,
    RULES,
    Client,
    EtcdNode,
    Prometheus,
    faster_rules,
    read,
    running_etcd,
    running_prometheus,
)
from servers import Cluster, running_cluster
from steward import Steward, running_steward
from waiting import START_S, until

FULL: Final = os.environ.get("TENSORHOLD_ALL_ALERTS") == "1"
only_in_full = pytest.mark.skipif(not FULL, reason="takes minutes: TENSORHOLD_ALL_ALERTS=1 runs it")

QUOTA: Final = 48 << 20
"""etcd's. A smaller one is met before it is near: it is checked in pages and after the fact, and all that the tests before write
is still there, because etcd compacts only every five minutes."""

RUN, TIGHT, ALONE = "run", "tight", "alone"
"""The store that is used, one with a small budget, and one that no steward looks after."""

VARIABLES: Final = {"$__rate_interval": "5s", "$__range": "30s", "$store": ".*"}
"""What Grafana puts in for its variables."""

EMPTY_WHEN_WELL: Final = {
    "tensorhold_certificate_end_seconds": "no server speaks TLS",
    'outcome="capacity"': "etcd has room",
    'outcome=~"unavailable|timeout|denied|corrupt|invalid|internal|other"': "no call to etcd or to the engine fails",
    'outcome=~"unavailable|failed|wrong_length"': "no object in a call to the engine fails",
    'outcome!~"ok|rejected"': "no call to etcd fails",
    'outcome!="ok"': "no operation and no call to the engine fails",
    'up{job=~"(tensorhold|mooncake).*"} == 0': "all processes answer",
    "tensorhold_steward_missing_holder_since_seconds": "no holder is missing",
    'job="mooncake-etcd"': "the etcd of Mooncake is scraped in the full form only",
}
"""Parts of queries that return nothing while all is well, and why: a series with an outcome begins with the first one. In the
full form they, too, have returned data at the end."""


@dataclasses.dataclass
class Scene:
    """What is shared by the tests of this file."""

    cluster: Cluster
    etcd: EtcdNode
    prometheus: Prometheus
    client: Client
    stewards: ExitStack
    steward: Steward | None = None
    masters: list[str] = dataclasses.field(default_factory=list)
    """The admin addresses of masters of other clusters, which are scraped as well."""

    def options(self, *stores: dict[str, Any]) -> dict[str, Any]:
        """Settings of a steward that looks often."""
        return {"stores": list(stores), "look_every": "500ms", "etcd": {"quota": QUOTA}}

    def start_steward(self) -> Steward:
        """Starts the steward if there is none."""
        if self.steward is None:
            options = self.options({"store": RUN, "audit_every": "2s"}, {"store": TIGHT})
            started = self.stewards.enter_context(running_steward(self.cluster, options))
            until("the steward is ready", started.ready, START_S)
            self.steward = started
            self.scrape()
        return self.steward

    def scrape(self, *more: Steward) -> None:
        """Scrapes the client, the steward, and these."""
        stewards = [one.url.removeprefix("http://") for one in (*([self.steward] if self.steward else []), *more)]
        masters = [admin.removeprefix("http://") for admin in (*self.cluster.admin, *self.masters)]
        self.prometheus.scrape(
            tensorhold=[f"127.0.0.1:{self.client.port}"],
            tensorhold_steward=stewards,
            mooncake_master=masters,
            mooncake_etcd=[self.etcd.url.removeprefix("http://")] if FULL else [],
        )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(tmp_path_factory.mktemp("etcd"), QUOTA))
        prometheus = stack.enter_context(running_prometheus(tmp_path_factory.mktemp("prometheus")))
        started = stack.enter_context(running_cluster(holders=2, segment_mib=64, etcd=0))
        cluster = dataclasses.replace(started, etcd=[etcd.url])
        client = Client(cluster.settings())
        stack.callback(client.close)
        client.call(alerts_client.open_store, RUN, {"budget": 32 << 20})
        client.call(alerts_client.open_store, TIGHT, {"budget": 1 << 20})
        client.call(alerts_client.work, RUN)
        made = Scene(cluster, etcd, prometheus, client, stack)
        made.start_steward()
        yield made


@contextmanager
def stopped_again_and_again(pid: int) -> Iterator[None]:
    """The process stands still for a second and runs for half of one, until the block ends."""
    done = threading.Event()

    def cycle() -> None:
        while not done.is_set():
            os.kill(pid, signal.SIGSTOP)
            done.wait(1.0)
            os.kill(pid, signal.SIGCONT)
            done.wait(0.5)

    thread = threading.Thread(target=cycle)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30.0)


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def operands(expression: str) -> list[str]:
    """The series that an alert looks at, each with the function over its time: what is left without comparisons, set
    operators and sums."""
    series = r'\b(?:tensorhold_\w+|master_\w+|ha_\w+|etcd_\w+|up)\b(?:\{[^}]*\})?'
    found = re.findall(rf"\w+\({series}\[[^]]*\]\)|{series}(?: offset \w+)?", re.sub(r"\b(?:by|on) \([^)]*\)", "", expression))
    assert found, expression
    return found


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard and every operand of the alerts, and where it stands."""
    rules = [rule for group in faster_rules()["groups"] for rule in group["rules"]]
    every = [(rule["alert"], part) for rule in rules for part in operands(rule["expr"])]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        every += [(f"panel {panel['title']}", target["expr"]) for target in panel.get("targets", [])]
    for at, (where, query) in enumerate(every):
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        every[at] = (where, query)
    return every


def may_be_empty(query: str) -> bool:
    return any(part in query for part in EMPTY_WHEN_WELL)


NO_TLS: Final = "the servers here speak without TLS; crates/steward/tests/tls.rs has such certificates, rules_test.yml their series"
NOT_HERE: Final = {
    "TensorholdSsdNearFull": "a holder's SSD has no size that a test could fill; rules_test.yml has its series",
    "TensorholdCertificateEnding": NO_TLS,
    "TensorholdCertificateEnded": NO_TLS,
}


def test_every_alert_has_a_cause_here() -> None:
    listed = re.findall(r"^(Tensorhold\w+) {2,}\S", __doc__, flags=re.MULTILINE)
    assert sorted([*listed, *NOT_HERE]) == sorted(rule["alert"] for rule in alerts())
    tests = Path(__file__).read_text().partition("def test_every_alert_has_a_cause_here")[2]
    assert [name for name in listed if f'"{name}"' not in tests] == []


def test_every_query_returns_data_from_live_servers(scene: Scene) -> None:
    client = scene.client
    client.call(alerts_client.prefetch, RUN)
    assert client.call(alerts_client.pages, list(range(1, 10)), False) == ["loaded", "loaded"]
    wanted = [(where, query) for where, query in queries() if not may_be_empty(query)]
    assert len(wanted) > 100

    def missing() -> list[tuple[str, str]]:
        return [(where, query) for where, query in wanted if not scene.prometheus.ever(query)]

    ends = time.monotonic() + 30
    while (left := missing()) and time.monotonic() < ends:
        time.sleep(0.5)
    assert not left, "\n".join(map(str, left))
    assert [part for part in EMPTY_WHEN_WELL if not any(part in query for _, query in queries())] == []
    # Nothing was wrong. A sixth of a second, the limit of TensorholdReclaimSlow here, is soon over on a busy machine.
    assert {one.labels["alertname"] for one in scene.prometheus.fired} <= {"TensorholdReclaimSlow"}


def test_wrong_bytes_broken_records_and_dead_letters(scene: Scene) -> None:
    scene.start_steward()
    prometheus, call = scene.prometheus, scene.client.call
    begun = time.monotonic()
    call(alerts_client.get_altered, RUN, "victim")
    assert call(alerts_client.pages, list(range(11, 20)), True)[1] == "corrupt"
    scene.etcd.ctl("put", f"/tensorhold/{RUN}/f/zzz/0000000000000001", given=b'{"generation":1,"reason":"SomethingNew"}')
    call(alerts_client.put, RUN, "bad", ["fails"], 1)
    call(alerts_client.fail, RUN, "bad", "fails")
    prometheus.fires("TensorholdCorruptGets", begun, store=RUN)
    prometheus.fires("TensorholdBadPages", begun)
    prometheus.fires("TensorholdRecordsQuarantined", begun, store=RUN)
    prometheus.fires("TensorholdDeadLetters", begun, store=RUN)
    call(alerts_client.abort, RUN, "victim")


def test_orphans_and_an_audit_that_is_refused(scene: Scene) -> None:
    scene.start_steward()
    prometheus, call = scene.prometheus, scene.client.call
    begun = time.monotonic()
    key = call(alerts_client.bring_back, RUN, "ghost")
    prometheus.fires("TensorholdOrphansFound", begun, store=RUN)
    begun = time.monotonic()
    ahead = call(alerts_client.plant_ahead, key)
    prometheus.fires("TensorholdAuditTrouble", begun, store=RUN)
    call(alerts_client.remove_object, ahead)
    prometheus.ends("TensorholdAuditTrouble", store=RUN)


def test_a_budget_that_is_spent_and_a_store_that_nobody_sweeps(scene: Scene) -> None:
    scene.start_steward()
    prometheus, call = scene.prometheus, scene.client.call
    begun = time.monotonic()
    call(alerts_client.open_store, ALONE, {"sweep_every": None})
    call(alerts_client.put, TIGHT, "filler", [], 1, 1000 << 10)
    call(alerts_client.wait_for_budget, TIGHT, 512 << 10)
    prometheus.fires("TensorholdNobodySweeps", begun, store=ALONE)
    prometheus.fires("TensorholdProducersStuck", begun, store=TIGHT)
    if FULL:
        prometheus.fires("TensorholdBudgetExhausted", begun, store=TIGHT)
    call(alerts_client.abort, TIGHT, "filler")
    prometheus.ends("TensorholdProducersStuck", store=TIGHT)
    call(alerts_client.end_load, f"wait {TIGHT}")


def test_a_steward_that_is_killed(scene: Scene) -> None:
    steward, prometheus = scene.start_steward(), scene.prometheus
    begun = time.monotonic()
    steward.process.kill()
    prometheus.fires("TensorholdProcessNotScraped", begun, instance=steward.url.removeprefix("http://"))
    prometheus.fires("TensorholdStewardAbsent", begun, store=RUN)
    scene.steward = None
    scene.start_steward()
    prometheus.ends("TensorholdStewardAbsent", store=RUN)


@only_in_full
def test_a_steward_that_cannot_reach_the_engine(scene: Scene) -> None:
    scene.start_steward()
    nowhere = dataclasses.replace(scene.cluster, master="127.0.0.1:1", admin=["http://127.0.0.1:1"])
    begun = time.monotonic()
    with running_steward(nowhere, scene.options({"store": RUN})) as second:
        scene.scrape(second)
        instance = second.url.removeprefix("http://")
        scene.prometheus.fires("TensorholdStewardStoreClosed", begun, store=RUN, instance=instance)
        scene.scrape()


@only_in_full
def test_sessions_that_end_again_and_again(scene: Scene) -> None:
    scene.start_steward()
    opened = f'tensorhold_sessions_opened_total{{store="{RUN}"}}'
    until("Prometheus has seen the first session", lambda: bool(scene.prometheus.query(opened)), START_S)
    begun = time.monotonic()
    call = scene.client.call
    for _ in range(5):
        session = call(alerts_client.health, RUN)["session"]
        for lease in re.findall(r"^[0-9a-f]+$", scene.etcd.ctl("lease", "list"), flags=re.MULTILINE):
            scene.etcd.ctl("lease", "revoke", lease, may_fail=True)
        known = (session, None)
        until("the client has another session", lambda: call(alerts_client.health, RUN)["session"] not in known, START_S)
    instance = f"127.0.0.1:{scene.client.port}"
    scene.prometheus.fires("TensorholdSessionsReopened", begun, store=RUN, instance=instance)


@only_in_full
def test_etcd_that_stands_still(scene: Scene) -> None:
    scene.start_steward()
    prometheus, call = scene.prometheus, scene.client.call
    begun = time.monotonic()
    call(alerts_client.open_store, "writes", {"etcd_options": {"write_timeout": 0.5, "try_timeout": 0.3}})
    call(alerts_client.work, "writes", 8, 0.0)
    with stopped_again_and_again(scene.etcd.pid):
        prometheus.fires("TensorholdIndexAmbiguous", begun, store="writes")
    begun = time.monotonic()
    os.kill(scene.etcd.pid, signal.SIGSTOP)
    try:
        prometheus.fires("TensorholdIndexFailing", begun, store="writes")
        prometheus.fires("TensorholdEtcdNodeSilent", begun, endpoint=scene.etcd.url)
    finally:
        os.kill(scene.etcd.pid, signal.SIGCONT)
    prometheus.ends("TensorholdEtcdNodeSilent", endpoint=scene.etcd.url)
    call(alerts_client.end_load, "work writes")


@only_in_full
def test_an_engine_that_loses_a_holder_and_a_master_that_hangs(scene: Scene) -> None:
    scene.start_steward()
    prometheus, call = scene.prometheus, scene.client.call
    samples = [f"sample-{at}" for at in range(16)]
    for sample in samples:
        call(alerts_client.put, RUN, sample, [])
    call(alerts_client.read_over_and_over, RUN, samples)
    begun = time.monotonic()
    os.kill(scene.cluster.pids["holder-1"], signal.SIGKILL)
    prometheus.fires("TensorholdEngineFailing", begun, store=RUN)
    prometheus.fires("TensorholdHolderMissing", begun)
    prometheus.fires("TensorholdSamplesLost", begun, store=RUN)
    call(alerts_client.end_load, f"read {RUN}")
    begun = time.monotonic()
    call(alerts_client.open_store, "filler", {})
    for at in range(58):
        call(alerts_client.put, "filler", f"filler-{at}", [], 1, 1 << 20)
    prometheus.fires("TensorholdDramNearFull", begun)
    for at in range(58):
        call(alerts_client.abort, "filler", f"filler-{at}")

    call(alerts_client.acknowledge, RUN, 400)
    master = scene.cluster.pids["master-0"]
    begun = time.monotonic()
    with stopped_again_and_again(master):
        prometheus.fires("TensorholdReclaimSlow", begun, store=RUN)
    begun = time.monotonic()
    os.kill(master, signal.SIGSTOP)
    try:
        prometheus.fires("TensorholdFreesPending", begun, store=RUN)
        prometheus.fires("TensorholdFreesFailing", begun, store=RUN)
    finally:
        os.kill(master, signal.SIGCONT)
    call(alerts_client.end_load, f"acknowledge {RUN}")


@only_in_full
def test_a_master_that_takes_over(scene: Scene) -> None:
    scene.start_steward()
    with running_cluster(holders=1, segment_mib=64, etcd=1, ha=True) as pair:
        scene.masters = pair.admin
        scene.scrape()
        role = [read(f"{admin}/role") for admin in pair.admin]
        stands_by = pair.admin[1 - role.index("leader")].removeprefix("http://")
        standing_by = f'ha_standby_state{{instance="{stands_by}"}} > 0'
        until("Prometheus has seen the standby", lambda: bool(scene.prometheus.query(standing_by)), START_S)
        begun = time.monotonic()
        os.kill(pair.pids[f"master-{role.index('leader')}"], signal.SIGKILL)
        scene.prometheus.fires("TensorholdMasterFailedOver", begun, instance=stands_by)
    scene.masters = []
    scene.scrape()


@only_in_full
def test_etcd_that_is_full(scene: Scene) -> None:
    scene.start_steward()
    prometheus = scene.prometheus
    begun = time.monotonic()
    scene.etcd.fill(0.8)
    prometheus.fires("TensorholdEtcdNearQuota", begun, endpoint=scene.etcd.url)
    prometheus.fires("TensorholdMooncakeEtcdNearQuota", begun, instance=scene.etcd.url.removeprefix("http://"))
    begun = time.monotonic()
    scene.etcd.fill(2.0)
    prometheus.fires("TensorholdEtcdFull", begun, endpoint=scene.etcd.url)
    prometheus.fires("TensorholdEtcdFull", begun, store=RUN)
    prometheus.fires("TensorholdSweepsFailing", begun, store=RUN)
    scene.etcd.make_room()
    prometheus.ends("TensorholdEtcdFull", endpoint=scene.etcd.url)


@only_in_full
def test_etcd_that_is_replaced(scene: Scene) -> None:
    """The last one: nothing of the store is left."""
    scene.start_steward()
    begun = time.monotonic()
    scene.etcd.replace()
    scene.prometheus.fires("TensorholdIndexRefuses", begun, store=RUN)


@only_in_full
def test_every_query_has_returned_data_when_all_has_gone_wrong(scene: Scene) -> None:
    never = [(where, query) for where, query in queries() if may_be_empty(query) and not scene.prometheus.ever(query)]
    assert [where for where, _ in never if where not in NOT_HERE] == []
    fired = {one.labels["alertname"] for one in scene.prometheus.fired}
    assert fired | set(NOT_HERE) == {rule["alert"] for rule in alerts()}
