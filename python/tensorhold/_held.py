"""The part of a lease that needs no call, shared by both faces."""

from __future__ import annotations

from typing import Any

from tensorhold import _tensorhold
from tensorhold._convert import to_ref, to_specs
from tensorhold._values import SampleRef, TensorSpec


class Held:
    """A sample that this process has taken."""

    __slots__ = ("__weakref__", "native")

    def __init__(self, native: _tensorhold.Lease) -> None:
        self.native = native
        """The handle of the compiled module."""

    def __repr__(self) -> str:
        return f"Lease({self.ref}, group={self.group!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a lease belongs to its process and cannot be pickled; pass lease.ref instead")

    @property
    def ref(self) -> SampleRef:
        """The incarnation of the sample."""
        return to_ref(self.native.described)

    @property
    def sample(self) -> str:
        """The sample's id."""
        return self.native.reference[0]

    @property
    def generation(self) -> int:
        """Which incarnation of the sample."""
        return self.native.reference[1]

    @property
    def group(self) -> str | None:
        """The group that it was taken for; None for a read."""
        return self.native.group

    @property
    def token(self) -> int:
        """The fencing token: larger for every later lease of the sample."""
        return self.native.token

    @property
    def answered(self) -> bool:
        """Whether it was acknowledged, handed back or released here."""
        return self.native.answered

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The sample's tensors."""
        return to_specs(self.native.specs)

    @property
    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        return sum(nbytes for _, _, _, nbytes in self.native.specs)
