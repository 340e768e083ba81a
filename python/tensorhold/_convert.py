"""Conversion of values between the package and its compiled module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tensorhold import _tensorhold
from tensorhold._inputs import describe_tensor, fill
from tensorhold._tensor import Tensor
from tensorhold._values import (
    AdoptedTensor,
    Answered,
    DeadLetter,
    Found,
    GroupProgress,
    LiveSession,
    PutItem,
    Quarantined,
    SampleRef,
    Swept,
    TensorSpec,
)
from tensorhold.errors import TensorholdError, Invalid

if TYPE_CHECKING:
    import torch

    from tensorhold._device import Allocator
    from tensorhold._inputs import TensorLike

T = TypeVar("T")
View = Literal["tensor", "torch", "numpy"]


def same(value: T) -> T:
    """Returns a result that needs no conversion."""
    return value


def checked(results: list[T | TensorholdError]) -> T:
    """The only result of a call; raises it if it is an error."""
    (result,) = results
    if isinstance(result, TensorholdError):
        raise result
    return result


def each(convert: Callable[[Any], T]) -> Callable[[list[Any]], list[T | TensorholdError]]:
    """Converts results one by one and leaves errors unchanged."""
    return lambda results: [r if isinstance(r, TensorholdError) else convert(r) for r in results]


def only(convert: Callable[[Any], T]) -> Callable[[list[Any]], T]:
    """Converts the only result; raises it if it is an error."""
    return lambda results: checked(each(convert)(results))


def to_ref(reference: tuple[str, int] | tuple[str, int, bytes | None]) -> SampleRef:
    """A reference, from the compiled module."""
    return SampleRef(*reference)


def from_ref(ref: SampleRef) -> tuple[str, int]:
    """A reference, for the compiled module."""
    if not isinstance(ref, SampleRef):
        raise Invalid(f"expected a SampleRef, not a {type(ref).__name__}", operation="python.ref")
    return ref.sample, ref.generation


def from_name(ref: SampleRef | str) -> tuple[str, int | None]:
    """A reference, or the id of a sample, which means its live generation."""
    return (ref, None) if isinstance(ref, str) else from_ref(ref)


def from_named(ref: SampleRef | str) -> _tensorhold.Named:
    """As :func:`from_name`, with the description that the reference carries."""
    return (*from_name(ref), None if isinstance(ref, str) else ref.description)


def to_specs(specs: Iterable[_tensorhold.Spec]) -> tuple[TensorSpec, ...]:
    """Specs, from the compiled module."""
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape, _ in specs)


def to_answered(answer: tuple[bool, str | None, bool]) -> Answered:
    """The outcome of an answer, from the compiled module."""
    return Answered(*answer)


def to_found(found: dict[str, Any] | None) -> Found | None:
    """A found sample, from the compiled module."""
    if found is None:
        return None
    return Found(
        ref=to_ref(found["reference"]),
        tensors=to_specs(found["specs"]),
        groups={name: GroupProgress(*progress) for name, progress in found["groups"].items()},
        readers=found["readers"],
        retain=found["retain"],
        max_attempts=found["max_attempts"],
    )


def to_session(session: tuple[int, tuple[str, int, str, str, str, int] | None]) -> LiveSession:
    """A session, from the compiled module."""
    number, said = session
    host, pid, program, version, role, started_ms = said or ("", 0, "", "", "", 0)
    return LiveSession(number, host, pid, program, version, role, started_ms / 1000)


def to_dead_letters(
    listed: tuple[Iterable[tuple[str, int, int, bool, int, int, list[tuple[str, int, bool]]]], str | None],
) -> tuple[list[DeadLetter], str | None]:
    """A page of dead letters, from the compiled module."""
    letters, after = listed
    found = []
    for sample, generation, nbytes, kept, at, by, groups in letters:
        attempts = {group: count for group, count, _ in groups}
        out = tuple(group for group, _, dead in groups if dead)
        found.append(DeadLetter(SampleRef(sample, generation), nbytes, kept, at / 1000, by, attempts, out))
    return found, after


def to_quarantined(listed: Iterable[tuple[str, int, str, int, bool]]) -> list[Quarantined]:
    """The records in quarantine, from the compiled module."""
    return [Quarantined(*record) for record in listed]


def to_swept(swept: dict[str, Any]) -> Swept:
    """The result of a sweep, from the compiled module."""
    return Swept(**swept)


def given(tensors: Mapping[str, Any], *, written: bool = False) -> list[_tensorhold.Given]:
    """Tensors, for the compiled module. With ``written``, their memory must be writable."""
    if not isinstance(tensors, Mapping):
        raise Invalid("pass a dictionary from names to tensors", operation="python.tensor")
    all_given: list[_tensorhold.Given] = []
    for name, tensor in tensors.items():
        one = describe_tensor(tensor, name)
        if written and not one.writable:
            raise Invalid("the memory to get into cannot be written", operation="python.get", facts={"tensor": name})
        all_given.append((name, one.dtype, one.shape, one.source))
    return all_given


def views(
    got: _tensorhold.Got, into: Mapping[str, Any] | None, view: View, device: torch.device | None = None
) -> dict[str, Any]:
    """The result of a get, in the view that the caller asked for."""
    if into is not None:
        for (name, *_), memory in got:
            if memory is not None:
                fill(into[name], memory, name)
        return {spec[0]: into[spec[0]] for spec, _ in got}
    if device is not None:
        return {name: one.to(device) for name, one in views(got, None, "torch").items()}
    tensors = [Tensor(name, dtype, tuple(shape), nbytes, memory) for (name, dtype, shape, nbytes), memory in got]
    if view == "tensor":
        return {tensor.name: tensor for tensor in tensors}
    if view == "torch":
        return {tensor.name: tensor.torch() for tensor in tensors}
    return {tensor.name: tensor.numpy() for tensor in tensors}


def on_device(device: torch.device | str | int | None, view: View) -> torch.device | None:
    """The device that a get puts tensors on; None for host memory."""
    if device is None or str(device).partition(":")[0] == "cpu":
        return None
    if view != "torch":
        raise Invalid("tensors on a device are torch's: pass as_=\"torch\"", operation="python.get", facts={"as_": view})
    import torch

    return torch.device(device)


def allocator(device: torch.device | None) -> Allocator | None:
    """Memory of a device for the tensors of a get; None if they arrive in host memory first."""
    if device is None:
        return None
    from tensorhold._device import Allocator, has_streams

    return Allocator(device) if has_streams(device) else None


def check_view(view: View) -> None:
    """Refuses an unknown view before any byte moves."""
    if view not in ("tensor", "torch", "numpy"):
        raise Invalid("as_ is tensor, torch or numpy", operation="python.get", facts={"as_": str(view)})


def names_of(names: Iterable[str] | None) -> list[str] | None:
    """Names as a list. A single string is refused: it would be read as a list of its letters."""
    if isinstance(names, str):
        raise Invalid("names is a list of names, not one string", operation="python.get", facts={"names": names})
    return None if names is None else list(names)


def groups_of(groups: Iterable[str] | None) -> list[str]:
    """Groups as a list. None is refused: a sample for no group stays, and counts against the budget, until it is retired. So
    is a single string, which would be read as a list of its letters."""
    if groups is None:
        raise Invalid(
            'say which groups are to use the sample: groups=["trainers"] for one, which take("trainers") returns; groups=() '
            "for none, and then it stays until it is used up, retired or aborted",
            operation="python.put",
        )
    if isinstance(groups, str):
        raise Invalid("groups is a list of names, not one string", operation="python.put", facts={"groups": groups})
    return list(groups)


def item(put: PutItem) -> _tensorhold.Item:
    """A sample to put, for the compiled module."""
    return put.sample, given(put.tensors), groups_of(put.groups), put.retain, put.max_attempts


def item_or_error(put: PutItem) -> _tensorhold.Item | TensorholdError:
    """As :func:`item`, but returns the error: a mistake in one sample is the result of that sample only."""
    try:
        return item(put)
    except TensorholdError as error:
        return error


def adopted(tensors: Iterable[AdoptedTensor]) -> list[tuple[str, str, Sequence[int], str, str | None]]:
    """Tensors that another writer wrote, for the compiled module."""
    return [(one.spec.name, one.spec.dtype, one.spec.shape, one.key, one.digest) for one in tensors]


def estimate(tensors: Mapping[str, TensorLike] | Iterable[TensorSpec]) -> int:
    """The number of bytes that a sample of these tensors takes."""
    if isinstance(tensors, Mapping):
        return sum(_tensorhold.spec_bytes(dtype, shape) for _, dtype, shape, _ in given(tensors))
    return sum(spec.nbytes for spec in tensors)
