"""Plain values: what is said about samples, leases and sweeps. All of them can be pickled and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast import _holdfast
from holdfast.errors import Invalid

__all__ = ["AdoptedTensor", "Answered", "Found", "GroupProgress", "PutItem", "SampleRef", "Swept", "TensorSpec"]


@dataclass(frozen=True, order=True)
class SampleRef:
    """One incarnation of a sample. As text it is ``sample-1#g3``; it can be pickled, and be a key of a dictionary."""

    sample: str
    """The sample's id."""
    generation: int
    """Which incarnation; only grows."""

    def __str__(self) -> str:
        return f"{self.sample}#g{self.generation}"

    @classmethod
    def parse(cls, text: str) -> SampleRef:
        """The reference behind its text form."""
        sample, mark, generation = text.rpartition("#g")
        if not (mark and sample and generation.isascii() and generation.isdecimal()):
            raise Invalid("a reference reads sample#g3", operation="python.ref", facts={"text": text})
        return cls(sample, int(generation))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"sample": self.sample, "generation": self.generation}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> SampleRef:
        """The reference behind its form for JSON."""
        try:
            return cls(str(fields["sample"]), int(fields["generation"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Invalid("a reference has a sample and a generation", operation="python.ref") from error


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor is, without its bytes."""

    name: str
    dtype: str
    """The element type, by torch's name: ``bfloat16``."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it has, dense."""
        return _holdfast.spec_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class AdoptedTensor:
    """A tensor that somebody else has written as one object."""

    spec: TensorSpec
    key: str
    """The object that its bytes are."""
    digest: str | None = None
    """The XXH3-128 checksum of its bytes in hexadecimal digits, if the writer made one. Without it a get cannot tell whether they changed."""


@dataclass(frozen=True)
class PutItem:
    """A sample to be put, for :meth:`FeatureStore.put_many`."""

    sample: str
    tensors: Mapping[str, Any]
    groups: Iterable[str] = ()
    retain: bool = False
    max_attempts: int = 3


@dataclass(frozen=True)
class Answered:
    """What became of a sample by an answer."""

    retired: bool
    """Whether it was the last answer: the sample is out of circulation."""
    reason: str | None = None
    """Why: ``consumed``, ``dead-letter``, ``aborted``, ``superseded``, ``lost``, ``abandoned``."""
    free: bool = False
    """Whether nobody reads it any more, so that its bytes are being removed now."""


@dataclass(frozen=True)
class GroupProgress:
    """How far a group is with a sample."""

    state: Literal["waiting", "leased", "acked", "dead"]
    attempts: int
    """How often the group has taken it."""


@dataclass(frozen=True)
class Found:
    """A live sample, as it was found."""

    ref: SampleRef
    tensors: tuple[TensorSpec, ...]
    groups: dict[str, GroupProgress] = field(hash=False)
    readers: int
    retain: bool
    max_attempts: int

    @property
    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True)
class Swept:
    """What a sweep did."""

    looked_at: int
    """Records that were due."""
    abandoned: int
    """Reservations given up on."""
    taken_back: int
    """Leases taken back."""
    retired: int
    """Samples that retired because of it."""
    sessions_cleared: int
    """Sessions that had ended and are cleared up."""
    more: bool
    """Whether there is more to do."""
    freed: int
    """Samples whose objects were removed."""
    failed: int
    """Samples whose objects could not be removed yet; they stay recorded."""
    quarantined: int = 0
    """Records that could not be read and were moved into quarantine."""
    later: int = 0
    """Records of later releases, which were passed over."""


@dataclass(frozen=True)
class Quarantined:
    """A record that nobody could read. It harms nothing; :meth:`FeatureStore.quarantined` lists them."""

    key: str
    """Where it was, below the root in etcd."""
    version: int
    """When it had been written there: etcd's revision."""
    why: str
    """What is wrong with it."""
    nbytes: int
    """How long it is."""
    in_place: bool
    """Whether it is too long to be moved and stays where it was."""
