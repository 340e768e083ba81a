"""Tensors on a device: exactly the bytes that the caller's stream had written, whatever is late, lost or given up."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import late_device
import pytest
import torch

import tensorhold
from conftest import OpenStore
from tensorhold import FeatureStore, PutItem, SampleRef, _device, aio
from tensorhold.errors import TensorholdError, Invalid, Unavailable, Unsupported
from servers import Cluster

DEVICE = f"{late_device.NAME}:0"
STAGE_BYTES = 1 << 20
SMALL = {"chunk_bytes": 64 << 10, "stage_bytes": STAGE_BYTES}


@pytest.fixture(autouse=True)
def prompt_device() -> Iterator[None]:
    """The device is as good as new before each test, and no copy has touched memory that was used again after it."""
    before = late_device.touched_after_reuse()
    late_device.forget()
    yield
    late_device.lose(False)
    late_device.hold(False)
    late_device.set_delay(0, 0)
    assert late_device.touched_after_reuse() == before


class Stages:
    """Counts the bytes of all stages that are alive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = self.peak = 0
        allocate = _device.Device.stage

        def counted(device: _device.Device, nbytes: int) -> tuple[int, object]:
            address, memory = allocate(device, nbytes)
            self.held += nbytes
            self.peak = max(self.peak, self.held)
            weakref.finalize(memory, self._gone, nbytes)
            return address, memory

        monkeypatch.setattr(_device.Device, "stage", counted)

    def _gone(self, nbytes: int) -> None:
        self.held -= nbytes


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    return Stages(monkeypatch)


@pytest.fixture
def store(open_store: OpenStore) -> FeatureStore:
    return open_store(features=SMALL)


def pattern(nbytes: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
    made.copy_(tensor)
    return made


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def test_bytes_of_every_kind_go_from_device_to_device(store: FeatureStore) -> None:
    tensors = {
        "bf16": torch.randn(3, 5, dtype=torch.bfloat16),
        "large": torch.randn(700, 1000),  # more than all stages
        "int64": torch.arange(10),
        "scalar": torch.tensor(3.25),
        "empty": torch.empty(0, 4),
    }
    ref = store.put("run/1", {**{name: on_device(one) for name, one in tensors.items()}, "host": tensors["large"]}, groups=())
    for got in (store.get(ref, as_="torch"), store.get(ref, as_="torch", device="cpu")):
        assert {name: as_bytes(one) for name, one in got.items()} == {
            name: as_bytes(one) for name, one in {**tensors, "host": tensors["large"]}.items()
        }
    with store.lease_shared(ref) as lease:
        for on in (lease.get(list(tensors), as_="torch", device=DEVICE), store.get(ref, as_="torch", device=DEVICE)):
            for name, tensor in tensors.items():
                one = on[name]
                assert (one.device.type, one.dtype, one.shape) == (late_device.NAME, tensor.dtype, tensor.shape), name
                assert late_device.content(one) == as_bytes(tensor), name
    into = torch.empty(700, 1000, device=DEVICE)
    assert store.get(ref, into={"large": into})["large"] is into
    assert late_device.content(into) == as_bytes(tensors["large"])


def test_a_sealed_store_takes_them_too(open_store: OpenStore) -> None:
    sealed = open_store(key=bytes(range(32)), features=SMALL)
    tensor = torch.randn(300, 1000)
    ref = sealed.put("run/1", {"t": on_device(tensor)}, groups=())
    assert late_device.content(sealed.get(ref, as_="torch", device=DEVICE)["t"]) == as_bytes(tensor)


def test_copies_come_after_what_was_queued_and_before_what_follows(store: FeatureStore) -> None:
    late_device.set_delay(0.02, 0.03)
    source = torch.empty(100_000, dtype=torch.uint8, device=DEVICE)
    for value in range(1, 6):
        late_device.fill(source, value)  # not done yet when the put begins
        ref = store.put(f"run/{value}", {"t": source}, groups=())
        late_device.fill(source, 0xEE)
        got = store.get(ref, as_="torch", device=DEVICE)["t"]
        assert late_device.content(got) == bytes([value]) * 100_000
    mine = late_device.Stream()
    with torch.get_device_module(DEVICE).stream(mine):
        late_device.fill(source, 9)
        ref = store.put("run/mine", {"t": source}, groups=())
    assert store.get(ref)["t"].tobytes() == bytes([9]) * 100_000


def test_memory_to_get_into_is_not_written_before_its_reader_is_done(store: FeatureStore) -> None:
    first, second = pattern(50_000, 1), pattern(50_000, 2)
    refs = [store.put(f"run/{n}", {"t": one}, groups=()) for n, one in enumerate((first, second))]
    into = torch.empty(50_000, dtype=torch.uint8, device=DEVICE)
    store.get(refs[0], into={"t": into})
    late_device.set_delay(0.05, 0.05)
    copy = torch.empty(50_000, dtype=torch.uint8)
    copy.copy_(into, non_blocking=True)  # the caller's stream still has to read it
    store.get(refs[1], into={"t": into})
    late_device.synchronize()
    assert as_bytes(copy) == as_bytes(first)
    assert late_device.content(into) == as_bytes(second)


def test_a_late_copy_fails_its_call_only(store: FeatureStore) -> None:
    good = store.put("run/0", {"t": on_device(pattern(1000, 0))}, groups=())
    source = on_device(pattern(300_000, 1))
    late_device.hold(True)
    with pytest.raises(Unavailable, match="device"):
        store.put("run/1", {"t": source}, groups=(), timeout=0.2)
    with pytest.raises(Unavailable, match="device"):
        store.get(good, as_="torch", device=DEVICE, timeout=0.2)
    late_device.hold(False)
    assert store.find(["run/1"]) == [None]
    for n in range(2, 12):  # the stages are back
        ref = store.put(f"run/{n}", {"t": source}, groups=())
        assert store.get(ref)["t"].tobytes() == late_device.content(source)


def test_what_a_late_get_still_writes_comes_before_what_the_caller_does_next(store: FeatureStore) -> None:
    ref = store.put("run/0", {"t": pattern(1000, 0)}, groups=())
    into = torch.empty(1000, dtype=torch.uint8, device=DEVICE)
    late_device.hold(True)
    with pytest.raises(Unavailable, match="device"):
        store.get(ref, into={"t": into}, timeout=0.2)
    late_device.set_delay(0.05, 0.05)  # for the copy alone
    late_device.fill(into, 7, late=False)
    late_device.hold(False)
    late_device.synchronize()
    assert late_device.content(into) == bytes([7]) * 1000


def test_a_lost_device_costs_its_own_samples_only(store: FeatureStore) -> None:
    source = on_device(pattern(1000, 1))
    late_device.lose(True)
    host = pattern(1000, 2)
    lost, kept = store.put_many([PutItem("run/1", {"t": source}, groups=()), PutItem("run/2", {"t": host}, groups=())])
    assert isinstance(lost, Unavailable) and "the device is lost" in str(lost)
    assert isinstance(kept, SampleRef)
    assert store.get(kept)["t"].tobytes() == as_bytes(host)
    with pytest.raises(Unavailable, match="the device is lost"):
        store.get(kept, as_="torch", device=DEVICE)


def test_one_bad_tensor_fails_alone(store: FeatureStore) -> None:
    good = on_device(pattern(1000, 1))
    bad, also_bad, kept = store.put_many(
        [
            PutItem("run/1", {"t": torch.empty(10, device="meta")}, groups=()),
            PutItem("run/2", {"t": good, "u": torch.empty(4, 4).t()}, groups=()),
            PutItem("run/3", {"t": good}, groups=()),
        ]
    )
    assert isinstance(bad, Unsupported) and "meta" in str(bad)
    assert isinstance(also_bad, Invalid)
    assert isinstance(kept, SampleRef)
    assert store.get(kept)["t"].tobytes() == late_device.content(good)
    with pytest.raises(Invalid, match="as_"):
        store.get(kept, as_="numpy", device=DEVICE)  # type: ignore[call-overload]


def test_a_source_that_its_caller_drops_is_not_used_again_too_early(open_store: OpenStore, store_name: str, cluster: Cluster) -> None:
    async def put_and_leave() -> int:
        left = 0
        settings = {"pool_bytes": 64 << 20, "sweep_every": None, **cluster.settings()}
        async with await aio.open(store_name, **settings) as store:
            for n in range(20):
                late_device.set_delay(0, 0.02, n)
                putting = asyncio.ensure_future(store.put(f"run/{n}", {"t": on_device(pattern(200_000, n))}, groups=()))
                gc.collect()  # nobody but the store has the tensor
                try:
                    await asyncio.wait_for(putting, 0.001 * n)
                except asyncio.TimeoutError:
                    left += 1
        return left

    assert asyncio.run(put_and_leave()) > 3
    late_device.set_delay(0, 0)
    store = open_store()
    for found in store.find([f"run/{n}" for n in range(20)]):
        if found is not None:
            number = int(found.ref.sample.removeprefix("run/"))
            assert store.get(found.ref)["t"].tobytes() == as_bytes(pattern(200_000, number))


def test_a_thousand_interleavings(
    store: FeatureStore, stages: Stages, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four threads, each with streams of its own, put from and get into tensors that their streams write before and after;
    events are late by up to two milliseconds."""
    rounds, threads = 250, 4
    late_device.set_delay(0, 0.002, 5)
    wrong: list[str] = []
    def one(number: int) -> None:
        chance = random.Random(number)
        module = torch.get_device_module(DEVICE)
        streams = [late_device.Stream() for _ in range(2)]
        sizes = [1, 1000, 64 << 10, (64 << 10) + 1, 200_000]
        live: list[tuple[Any, int, int]] = []
        for at in range(rounds):
            with module.stream(chance.choice(streams)):
                value, nbytes = chance.randrange(1, 0xD0), chance.choice(sizes)
                source = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)
                late_device.fill(source, value)
                ref = store.put(f"run/{number}-{at}", {"t": source}, groups=())
                if chance.random() < 0.5:
                    late_device.fill(source, 0xEE)
                del source
                live.append((ref, value, nbytes))
                ref, value, nbytes = chance.choice(live[-8:])
                if chance.random() < 0.5:
                    into = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)
                    late_device.fill(into, 0xEF)
                    store.get(ref, into={"t": into})
                else:
                    into = store.get(ref, as_="torch", device=DEVICE)["t"]
                if late_device.content(into) != bytes([value]) * nbytes:
                    wrong.append(f"{ref}: {value}, not {set(late_device.content(into))}")

    running = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    begun = time.monotonic()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(300)
        assert not thread.is_alive()
    with capsys.disabled():
        print(f" {rounds * threads} in {time.monotonic() - begun:.1f} s, {len(late_device.log())} copies, stages {stages.peak >> 10} KiB ", end="")
    assert wrong == []
    assert 0 < stages.peak <= 2 * STAGE_BYTES  # one for puts, one for gets


def test_inference_mode_and_gradients_change_nothing(store: FeatureStore) -> None:
    data = pattern(100_000, 3)
    with torch.inference_mode():
        source = on_device(data)
        ref = store.put("run/1", {"t": source}, groups=())
        into = torch.empty(100_000, dtype=torch.uint8, device=DEVICE)
        store.get(ref, into={"t": into})
        assert late_device.content(into) == as_bytes(data)
        got = store.get(ref, as_="torch", device=DEVICE)["t"]
    assert late_device.content(got) == as_bytes(data)


def test_tensors_without_bytes_of_their_own_are_refused(store: FeatureStore) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(10, device="cuda")
    with pytest.raises(Unsupported, match="no bytes of its own"):
        store.put("run/1", {"t": fake}, groups=())


def test_a_busy_caller_does_not_hold_up_others(store: FeatureStore) -> None:
    """What one stream has queued delays the copies of the calls that depend on it, and no others."""
    module, late = torch.get_device_module(DEVICE), threading.Event()
    busy, source = late_device.Stream(), on_device(pattern(1000, 1))
    busy.enqueue(lambda: None if late.wait(60) else None)
    failed: list[BaseException] = []

    def put_late() -> None:
        with module.stream(busy):
            try:
                store.put("run/late", {"t": source}, groups=(), timeout=30)
            except TensorholdError as error:
                failed.append(error)

    waiting = threading.Thread(target=put_late)
    waiting.start()
    try:
        other = on_device(pattern(1000, 2))
        for n in range(3):
            store.put(f"run/{n}", {"t": other}, groups=(), timeout=5)
    finally:
        late.set()
        waiting.join(60)
    assert failed == []


def test_a_failed_call_names_the_tensor(store: FeatureStore) -> None:
    late_device.hold(True)
    with pytest.raises(TensorholdError) as raised:
        store.put("run/1", {"t": on_device_without_waiting(1000)}, groups=(), timeout=0.2)
    assert "run/1" in str(raised.value)


def on_device_without_waiting(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)


def test_specforge_puts_from_and_gets_to_a_device(cluster: Cluster, store_name: str) -> None:
    from tensorhold.specforge import TensorholdFeatureStore

    hidden, ids = torch.randn(1, 8, 64).to(torch.bfloat16), torch.arange(8).unsqueeze(0)
    metadata = {"run_id": "run", "source_task_id": "task", "strategy": "eagle3", "num_tokens": 8}
    for retain in (False, True):
        name = f"{store_name}-{retain}"
        settings: dict[str, Any] = {"pool_bytes": 64 << 20, "sweep_every": None, **cluster.settings()}
        with TensorholdFeatureStore(store_id=name, retain_on_release=retain, **settings) as features:
            tensors = {"hidden_states": on_device(hidden), "input_ids": ids}
            ref = features.put(tensors, sample_id="sample-1", metadata=metadata)
            got, handle = features.get(ref, device=DEVICE)
            assert got["hidden_states"].device.type == late_device.NAME
            assert late_device.content(got["hidden_states"]) == as_bytes(hidden)
            assert late_device.content(got["input_ids"]) == as_bytes(ids)
            features.release(handle)


def test_torchspec_puts_from_and_gets_to_a_device(cluster: Cluster, store_name: str) -> None:
    from tensorhold.torchspec import EagleStore

    hidden, ids = torch.randn(8, 192).to(torch.bfloat16), torch.arange(8)
    for pool_bytes in (64 << 20, 4096):  # copied at once, and put from where it is
        settings: dict[str, Any] = {"pool_bytes": pool_bytes, "sweep_every": None, **cluster.settings()}
        with EagleStore(f"{store_name}-{pool_bytes}", **settings) as eagle:
            source = on_device(hidden)
            stored = eagle.put("sample-1", source, on_device(ids), None)
            late_device.fill(source, 0xEE)  # the caller's memory is the caller's again
            eagle.flush()
            got = eagle.get("sample-1", stored["shapes"], stored["dtypes"], DEVICE)
            assert late_device.content(got.hidden_states) == as_bytes(hidden)
            assert as_bytes(got.input_ids_cpu) == as_bytes(ids)
