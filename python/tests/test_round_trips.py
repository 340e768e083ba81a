"""What goes in comes out, whatever it is: torch, numpy, DLPack, bytes."""

from __future__ import annotations

import array
import gc
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import tensorhold
from conftest import OpenStore
from tensorhold import FeatureStore, PutItem, Tensor
from tensorhold.kv import Memory

TORCH = {
    "bf16": torch.randn(3, 5, dtype=torch.bfloat16),
    "fp16": torch.randn(7, dtype=torch.float16),
    "f32": torch.randn(2, 3, 4),
    "f64": torch.randn(9, dtype=torch.float64),
    "int64": torch.arange(10),
    "uint8": torch.arange(200, dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(4, dtype=torch.complex64),
    "fp8": torch.randn(16).to(torch.float8_e4m3fn),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(3.25),
}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right) if tensor.numel()]
    return left.dtype == right.dtype and left.shape == right.shape and (not flat or torch.equal(flat[0], flat[1]))


def test_torch_tensors_of_every_kind(store: FeatureStore) -> None:
    ref = store.put("torch", TORCH, groups=())
    got = store.get(ref, as_="torch")
    assert list(got) == list(TORCH)
    for name, tensor in TORCH.items():
        assert same(got[name], tensor), name
    specs = {spec.name: spec for spec in store.read(ref).tensors}
    assert specs["bf16"].dtype == "bfloat16" and specs["scalar"].shape == () and specs["empty"].nbytes == 0


def test_numpy_arrays(store: FeatureStore) -> None:
    arrays: dict[str, numpy.ndarray[Any, Any]] = {
        "f32": numpy.random.default_rng(1).random((4, 6), dtype=numpy.float32),
        "i16": numpy.arange(-5, 5, dtype=numpy.int16),
        "bool": numpy.array([[True], [False]]),
        "complex": numpy.array([1 + 2j]),
        "scalar": numpy.array(7),
        "empty": numpy.empty((0,), dtype=numpy.uint32),
    }
    got = store.get(store.put("numpy", arrays, groups=()), as_="numpy")
    for name, expected in arrays.items():
        assert got[name].dtype == expected.dtype and got[name].shape == expected.shape, name
        assert numpy.array_equal(got[name], expected), name


def test_what_numpy_does_not_have_is_said_and_comes_raw(store: FeatureStore) -> None:
    tensor = torch.randn(8, dtype=torch.bfloat16)
    got = store.get(store.put("raw", {"x": tensor}, groups=()))["x"]
    with pytest.raises(tensorhold.Unsupported, match="ml_dtypes"):
        got.numpy()
    assert numpy.array_equal(got.numpy(raw=True), tensor.view(torch.uint16).numpy())


class Passed:
    """An array that speaks DLPack only, with or without versions."""

    def __init__(self, tensor: Any, versions: bool) -> None:
        self.tensor, self.versions = tensor, versions

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> object:
        if not self.versions and options:
            raise TypeError("no options")
        return self.tensor.__dlpack__(**options)


@pytest.mark.parametrize("versions", [True, False])
def test_dlpack_in_and_out(store: FeatureStore, versions: bool) -> None:
    tensors = {"i": torch.arange(24).reshape(2, 3, 4), "b": torch.randn(5, dtype=torch.bfloat16)}
    array_in = numpy.arange(6.0).reshape(2, 3)
    given: dict[str, Any] = {name: Passed(tensor, versions) for name, tensor in tensors.items()}
    ref = store.put("dlpack", {**given, "n": Passed(array_in, versions)}, groups=())
    got = store.get(ref)
    for name, tensor in tensors.items():
        assert torch.equal(from_dlpack(got[name]), tensor)
    assert numpy.array_equal(numpy.from_dlpack(got["n"]), array_in)
    assert numpy.array_equal(numpy.asarray(got["n"]), array_in)
    legacy = from_dlpack(got["i"].__dlpack__())
    assert torch.equal(legacy, tensors["i"])
    # A capsule that is never consumed frees itself.
    assert got["i"].__dlpack__(max_version=(1, 0)) is not None and got["i"].__dlpack__() is not None


def test_bytes_and_other_buffers(store: FeatureStore) -> None:
    buffers: dict[str, Any] = {
        "bytes": b"committed",
        "bytearray": bytearray(range(256)),
        "view": memoryview(b"0123456789")[2:7],
        "doubles": array.array("d", [1.5, -2.5]),
        "none": b"",
    }
    got = store.get(store.put("bytes", buffers, groups=()))
    for name, buffer in buffers.items():
        assert got[name].tobytes() == bytes(buffer), name
        assert bytes(got[name].memoryview()) == bytes(buffer), name
    assert (got["doubles"].dtype, got["doubles"].shape, got["bytes"].dtype) == ("float64", (2,), "uint8")
    grown = buffers["bytearray"]
    gc.collect()
    store.drain()
    for _ in range(200):  # the engine lets go of it in the background
        try:
            grown.append(1)
            break
        except BufferError:
            store.health()
    else:
        pytest.fail("the buffer is still exported")


def test_some_tensors_of_a_sample(store: FeatureStore) -> None:
    ref = store.put("some", {"a": torch.ones(3), "b": torch.zeros(4), "c": torch.ones(5)}, groups=())
    assert {name: t.numel() for name, t in store.get(ref, ["c", "a"], as_="torch").items()} == {"c": 5, "a": 3}
    with pytest.raises(tensorhold.TensorholdError, match="tensor"):
        store.get(ref, ["d"])
    with pytest.raises(tensorhold.Invalid, match="not one string"):
        store.get(ref, "abc")


def test_into_memory_of_the_caller(store: FeatureStore) -> None:
    tensors = {"a": torch.randn(1000, 7), "b": torch.arange(5, dtype=torch.int32), "z": torch.empty(0)}
    ref = store.put("into", tensors, groups=())
    mine: dict[str, Any] = {"a": torch.zeros(1000, 7), "b": numpy.zeros(5, dtype=numpy.int32), "z": torch.empty(0)}
    got = store.get(ref, into=mine)
    assert all(got[name] is mine[name] for name in mine)
    assert torch.equal(mine["a"], tensors["a"]) and numpy.array_equal(mine["b"], tensors["b"].numpy())
    flat = bytearray(4 * 5)
    with store.read(ref) as lease:
        lease.get(into={"b": flat})
    assert bytes(flat) == tensors["b"].numpy().tobytes()
    with pytest.raises(tensorhold.Invalid, match="element type or shape"):
        store.get(ref, into={"a": torch.zeros(7, 1000)})
    with pytest.raises(tensorhold.Invalid, match="cannot be written"):
        store.get(ref, into={"b": bytes(20)})
    with pytest.raises(tensorhold.Invalid, match="neither names nor device"):
        store.get(ref, ["a"], into=mine)  # type: ignore[call-overload]


def test_what_arrives_goes_where_the_tensor_is_by_then(store: FeatureStore) -> None:
    ref = store.put("moved", {"x": torch.arange(1000)}, groups=())
    mine = torch.zeros(1000, dtype=torch.int64)
    get = store._calls.get(ref, None, {"x": mine}, "tensor", None, 20.0)
    mine.share_memory_()  # type: ignore[no-untyped-call]
    assert get.wait()["x"] is mine and torch.equal(mine, torch.arange(1000))
    get = store._calls.get(ref, None, {"x": mine}, "tensor", None, 20.0)
    mine.resize_(7)
    with pytest.raises(tensorhold.Invalid, match="became another"):
        get.wait()


class Wrapper(torch.Tensor):
    """A tensor that stands for another one, as those of torchao and of FSDP do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.whole = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return function(*[one.whole if isinstance(one, Wrapper) else one for one in args], **(kwargs or {}))


@pytest.fixture(scope="module")
def distributed() -> Iterator[torch.Tensor]:
    """A tensor of torch.distributed, on a mesh of this process alone."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield distribute_tensor(torch.arange(1000), init_device_mesh("cpu", (1,)), [Shard(0)])
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["wrapper", "dtensor", "zero", "vmap", "null array"])
def test_tensors_without_bytes_of_their_own_are_refused(
    store: FeatureStore, distributed: torch.Tensor, kind: str
) -> None:
    class Null:
        __array_interface__ = {"shape": (1000,), "typestr": "<i8", "data": (0, False), "version": 3}

    zero = torch._efficientzerotensor((1000,), dtype=torch.int64)
    ref = store.put("whole", {"x": torch.arange(1000)}, groups=())

    def refuse(tensor: Any) -> None:
        for call in (
            lambda: store.put("s", {"x": tensor}, groups=()),
            lambda: store.get(ref, into={"x": tensor}),
            lambda: Memory.of(tensor),
        ):
            if kind == "null array" and call.__code__.co_names[0] == "Memory":
                continue  # it reads flags, which only numpy's have
            with pytest.raises(tensorhold.Unsupported, match="bytes of its own"):
                call()

    if kind == "vmap":
        torch.func.vmap(lambda one: (refuse(one), one)[1])(torch.ones(2, 1000, dtype=torch.int64))  # type: ignore[func-returns-value]
    else:
        tensors = {
            "wrapper": Wrapper(torch.arange(1000)),
            "dtensor": distributed,
            "zero": zero,
            "null array": Null(),
        }
        refuse(tensors[kind])
    assert store.find(["s"]) == [None]
    if kind == "dtensor":  # what the message says to do
        assert store.put("s", {"x": distributed.to_local()}, groups=())  # type: ignore[attr-defined]
        assert torch.equal(store.get("s", as_="torch")["x"], torch.arange(1000))


def test_one_tensor_under_two_names_and_again_at_once(store: FeatureStore) -> None:
    tensor = torch.randn(1 << 16)
    for step in range(20):
        tensor[0] = step
        ref = store.put("again", {"whole": tensor, "same": tensor, "part": tensor[100:200]}, groups=())
    got = store.get(ref, as_="torch")
    assert torch.equal(got["whole"], tensor) and torch.equal(got["same"], tensor)
    assert torch.equal(got["part"], tensor[100:200])


def test_what_was_got_can_be_put_and_be_got_into(store: FeatureStore) -> None:
    first = store.put("first", {"x": torch.arange(1000)}, groups=())
    got = store.get(first, as_="torch")["x"]
    second = store.put("second", {"x": got, "slice": got[10:20]}, groups=())
    assert torch.equal(store.get(second, as_="torch")["x"], torch.arange(1000))
    third = store.put("third", {"x": torch.arange(1000, 2000)}, groups=())
    store.get(third, into={"x": got})
    assert got[0] == 1000


def test_memory_of_the_pool_to_write_into(store: FeatureStore) -> None:
    buffer = store.empty((4, 8), torch.bfloat16)
    assert isinstance(buffer, Tensor) and buffer.nbytes == 64
    buffer.torch().fill_(2.5)
    ref = store.put("pooled", {"x": buffer}, groups=())
    assert torch.equal(store.get(ref, as_="torch")["x"], torch.full((4, 8), 2.5, dtype=torch.bfloat16))
    assert store.empty([3], "int32").numpy().shape == (3,)
    assert store.empty([3], numpy.dtype("float32")).dtype == "float32"


def test_memory_goes_back_when_the_last_view_is_gone(store: FeatureStore) -> None:
    ref = store.put("views", {"x": torch.arange(1 << 20, dtype=torch.uint8)}, groups=())
    before = store.health()["pool"]["lent"]
    got: dict[str, Any] = dict(store.get(ref))
    tensor = got["x"].torch()
    view = tensor[5:10]
    other = got["x"].numpy()
    passed = from_dlpack(got["x"])
    assert store.health()["pool"]["lent"] > before
    for name in ["tensor", "got", "other", "passed"]:
        assert view.tolist() == [5, 6, 7, 8, 9]
        match name:
            case "tensor":
                del tensor
            case "got":
                got.clear()
            case "other":
                del other
            case "passed":
                del passed
        assert store.health()["pool"]["lent"] > before, f"after {name}"
    del view
    gc.collect()
    assert store.health()["pool"]["lent"] == before


def test_lent_memory_is_forgotten_after_the_transfer(store: FeatureStore) -> None:
    before = store.health()["registrations"]["regions"]
    store.put("lent", {"x": torch.zeros(1 << 20)}, groups=())
    for _ in range(1000):
        if store.health()["registrations"]["regions"] == before:
            return
    pytest.fail("the tensor's memory is still registered")


def test_unusable_tensors_say_what_to_do(store: FeatureStore) -> None:
    for tensor, advice in [
        (torch.zeros(4, 6).t(), r"\.contiguous\(\)"),
        (torch.zeros(3).to_sparse(), r"\.to_dense\(\)"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "resolve_conj"),
        (numpy.zeros((4, 6)).T, "ascontiguousarray"),
        (numpy.zeros(3, dtype=">f4"), "swap its bytes"),
        (numpy.array(["text"]), "plain number type"),
        (memoryview(bytes(10))[::2], r"bytes\(buffer\)"),
        (Passed(torch.zeros(4, 6).t(), True), "contiguous"),
        ([1, 2, 3], "pass a torch tensor"),
    ]:
        with pytest.raises(tensorhold.Invalid, match=advice):
            store.put("odd", {"x": tensor}, groups=())  # type: ignore[dict-item]
    with pytest.raises(tensorhold.Unsupported, match=r"\.cpu\(\)"):
        store.put("odd", {"x": torch.zeros(3, device="meta")}, groups=())
    with pytest.raises(ValueError):
        store.put("odd", {}, groups=())
    with pytest.raises(tensorhold.Invalid, match="not one string"):
        store.put("odd", {"x": b"1"}, groups="trainers")
    assert store.find(["odd"]) == [None]


def test_many_at_once_with_an_error_in_its_place(store: FeatureStore) -> None:
    items = [PutItem(f"many-{n}", {"x": torch.full((n,), n)}, groups=()) for n in range(1, 6)]
    results = store.put_many([*items, PutItem("bad", {}, groups=())])
    assert isinstance(results[-1], tensorhold.Invalid)
    refs = [ref for ref in results if isinstance(ref, tensorhold.SampleRef)]
    assert [ref.sample for ref in refs] == [item.sample for item in items]
    leases = store.read_many([*refs, "nobody"])
    assert isinstance(leases[-1], tensorhold.NotFound)
    assert [lease.get(as_="torch")["x"].numel() for lease in leases if isinstance(lease, tensorhold.Lease)] == [1, 2, 3, 4, 5]


def test_several_chunks_and_no_checksums(open_store: OpenStore) -> None:
    data = torch.randint(0, 255, (5 << 20,), dtype=torch.uint8)
    for options in ({"features": {"chunk_bytes": 1 << 20}}, {"checksum": False}):
        store = open_store(**options)
        assert torch.equal(store.get(store.put("chunks", {"x": data}, groups=()), as_="torch")["x"], data)


def test_one_sample_on_another_device_fails_alone(store: tensorhold.FeatureStore) -> None:
    elsewhere = torch.empty(4, device="meta")  # any device but the CPU

    class Refuses:
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("cannot be exported")

    good, bad = {"x": b"bytes"}, {"x": b"bytes", "y": elsewhere}
    items = [
        tensorhold.PutItem("first", good, groups=()),
        tensorhold.PutItem("on-a-device", bad, groups=()),
        tensorhold.PutItem("refuses", {"x": Refuses()}, groups=()),
        tensorhold.PutItem("", good, groups=()),
        tensorhold.PutItem("no-such-group", good, groups=["a/b"]),
        tensorhold.PutItem("no-such-name", {"": b"bytes"}, groups=()),
        tensorhold.PutItem("last", good, groups=()),
    ]
    first, *failed, last = store.put_many(items)
    assert isinstance(first, tensorhold.SampleRef) and isinstance(last, tensorhold.SampleRef)
    kinds = [type(one) for one in failed]
    assert kinds == [tensorhold.Unsupported, tensorhold.Unsupported, tensorhold.Invalid, tensorhold.Invalid, tensorhold.Invalid]
    assert "call .cpu()" in str(failed[0])
    found = store.find(["first", "on-a-device", "refuses", "no-such-group", "last"])
    assert [one is not None for one in found] == [True, False, False, False, True]
    assert store.put_many([items[1]])[0].__class__ is tensorhold.Unsupported
    assert store.put_many([]) == []
