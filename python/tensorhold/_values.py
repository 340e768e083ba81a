"""Plain values that describe samples, leases and sweeps. All of them can be pickled and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tensorhold import _tensorhold
from tensorhold.errors import Invalid

__all__ = ["AdoptedTensor", "Answered", "Found", "GroupProgress", "PutItem", "SampleRef", "Swept", "TensorSpec"]


@dataclass(frozen=True, order=True)
class SampleRef:
    """One incarnation of a sample. Its text form is ``sample-1#g3``. It can be pickled, and be the key of a
    dictionary."""

    sample: str
    """The sample's id."""
    generation: int
    """Which incarnation; the number only grows."""
    description: bytes | None = field(default=None, compare=False, repr=False)
    """The sample's description, if the process that made this reference knew it and it is short. A get by this reference
    then moves bytes while the index is asked; without it the reference means the same. It is never believed: the index's
    own description decides."""

    def __str__(self) -> str:
        return f"{self.sample}#g{self.generation}"

    @classmethod
    def parse(cls, text: str) -> SampleRef:
        """Parses the text form."""
        sample, mark, generation = text.rpartition("#g")
        if not (mark and sample and generation.isascii() and generation.isdecimal()):
            raise Invalid("a reference reads sample#g3", operation="python.ref", facts={"text": text})
        return cls(sample, int(generation))

    def to_dict(self) -> dict[str, Any]:
        """The form for JSON."""
        fields: dict[str, Any] = {"sample": self.sample, "generation": self.generation}
        if self.description is not None:
            fields["description"] = self.description.decode("utf-8", "replace")
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> SampleRef:
        """Parses the form for JSON."""
        try:
            description = fields.get("description")
            carried = None if description is None else str(description).encode()
            return cls(str(fields["sample"]), int(fields["generation"]), carried)
        except (KeyError, TypeError, ValueError) as error:
            raise Invalid("a reference needs a sample and a generation", operation="python.ref") from error


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its bytes: name, element type and shape."""

    name: str
    dtype: str
    """The element type, by torch's name: ``bfloat16``."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size in bytes when contiguous."""
        return _tensorhold.spec_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class AdoptedTensor:
    """A tensor that another writer has written as one object."""

    spec: TensorSpec
    key: str
    """The object that holds its bytes."""
    digest: str | None = None
    """The XXH3-128 checksum of its bytes in hexadecimal digits, if the writer computed one. Without it a get cannot
    tell whether the bytes changed."""


@dataclass(frozen=True)
class PutItem:
    """A sample to put, for :meth:`FeatureStore.put_many`."""

    sample: str
    tensors: Mapping[str, Any]
    groups: Iterable[str] | None = None
    """The groups that use it, each once. It must be given: ``()`` for a sample that stays until it is retired."""
    retain: bool = False
    max_attempts: int = 3


@dataclass(frozen=True)
class Answered:
    """The state of a sample after an answer (ack, nack, retire)."""

    retired: bool
    """Whether this was the last answer: the sample is out of circulation."""
    reason: str | None = None
    """Why: ``consumed``, ``dead-letter``, ``aborted``, ``superseded``, ``lost``, ``abandoned``; ``other`` for one that only
    a later release knows."""
    free: bool = False
    """Whether no reader is left, so that the bytes are being removed now."""


@dataclass(frozen=True)
class GroupProgress:
    """How far a group has come with a sample."""

    state: Literal["waiting", "leased", "acked", "dead"]
    attempts: int
    """How often the group has taken the sample."""


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
    """The result of a sweep."""

    looked_at: int
    """Records that were due."""
    abandoned: int
    """Reservations that were given up."""
    taken_back: int
    """Leases taken back."""
    retired: int
    """Samples that were retired as a result."""
    sessions_cleared: int
    """Ended sessions that were cleaned up."""
    more: bool
    """Whether there is more to do."""
    freed: int
    """Samples whose objects were removed."""
    failed: int
    """Samples whose objects could not be removed yet; they stay recorded."""
    quarantined: int = 0
    """Records that could not be parsed and were moved into quarantine."""
    later: int = 0
    """Records of later releases, which were skipped."""


@dataclass(frozen=True)
class LiveSession:
    """A session of a store that is alive, and what its process says of itself. Nothing of that is checked."""

    session: int
    host: str
    pid: int
    program: str
    version: str
    """The release of Tensorhold; empty if the process says nothing, as those of earlier releases."""
    role: str
    """See :attr:`Settings.role`."""
    started: float
    """When the session was opened, in seconds since 1970, by the clock of its host."""


@dataclass(frozen=True)
class DeadLetter:
    """A sample that a group could not use within its attempts."""

    ref: SampleRef
    nbytes: int
    kept: bool
    """Whether its bytes are kept, so that it can be requeued."""
    retired: float
    """When it was retired, in seconds since 1970, by the clock of the process that did it; 0 if it is not known."""
    retired_by: int
    """The session of that process."""
    attempts: dict[str, int]
    """How often each group had taken it."""
    out_of_attempts: tuple[str, ...]
    """The groups that could not use it."""


@dataclass(frozen=True)
class Quarantined:
    """A record in quarantine: it could not be parsed. It does no harm; :meth:`FeatureStore.quarantined` lists them."""

    key: str
    """Its former key, below the root in etcd."""
    version: int
    """The revision of etcd at which it was written there."""
    why: str
    """Why it could not be parsed."""
    nbytes: int
    """Its length in bytes."""
    in_place: bool
    """Whether it is too long to be moved and therefore stays under its key."""
