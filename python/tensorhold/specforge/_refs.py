"""Translates SpecForge's references and errors to Tensorhold's, and back.

A sample that was put here is named ``tensorhold://<store>/<sample>?generation=<n>``; the generation is the shared index's.
A sample that a serving engine wrote keeps SpecForge's own reference. Its ``metadata["generation"]`` is the writer's (it
is part of the object keys), so ours is stored beside it, under :data:`CUSTODY`, when the reference is adopted. The
writer's generation is also recorded with the sample, as an empty tensor whose shape encodes it (:func:`written_spec`).
So any process can tell whether a live sample is the one that a reference without :data:`CUSTODY` means.

In a mixed run some processes use SpecForge's own store. It takes ``metadata["generation"]`` for a number and finds the
objects by it, custody or not. So a generation in our references is a text (:func:`told`): that store's ``int()`` refuses
it, and the message that its user gets ends with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

import torch
from specforge.runtime.contracts import SCHEMA_VERSION, FeatureSpec
from specforge.runtime.contracts import SampleRef as Reference
from specforge.runtime.data_plane.feature_store import spec_from_tensor

from tensorhold._values import SampleRef, TensorSpec
from tensorhold.errors import Corrupt, TensorholdError

SCHEME: Final = "tensorhold"
GENERATION: Final = "generation"
"""The key in a reference's metadata that holds SpecForge's generation."""
CUSTODY: Final = "tensorhold_generation"
"""The key in an adopted reference's metadata that holds our generation."""
DESCRIPTION: Final = "tensorhold_description"
"""The key in a reference's metadata that holds the sample's description: with it a get moves bytes while the index is asked."""
TOGETHER: Final = "start every process of the run with python -m tensorhold.specforge"
WRITTEN: Final = ".written"
"""The empty tensor that records which generation a serving engine wrote."""


class FeatureStoreFailure(RuntimeError):
    """The store could not do it now: it did not answer, or another process changed the same sample. The cause says
    more."""


class FeatureCorrupt(KeyError):
    """The bytes that arrived were not the committed ones; none of them were returned."""


@contextmanager
def in_specforge_terms() -> Iterator[None]:
    """Raises our errors as SpecForge's contract requires: KeyError, MemoryError, PermissionError and ValueError already
    conform, wrong bytes are a KeyError, and any other error is a RuntimeError."""
    try:
        yield
    except Corrupt as error:
        raise FeatureCorrupt(str(error)) from error
    except (KeyError, MemoryError, PermissionError, ValueError, RuntimeError):
        raise
    except TensorholdError as error:
        raise FeatureStoreFailure(str(error)) from error


def told(generation: int) -> str:
    """A generation, for a reference's metadata."""
    return f"{generation} of a Tensorhold store: {TOGETHER}"


def _number(generation: object) -> int:
    """The generation in a reference's metadata: of ours, or of SpecForge's own."""
    number = str(generation).partition(" ")[0]
    if not number.isdecimal():
        raise KeyError(f"{generation!r} is no generation")
    return int(number)


def reference(
    store_id: str, ref: SampleRef, tensors: Mapping[str, torch.Tensor], nbytes: int, metadata: Mapping[str, Any]
) -> Reference:
    """SpecForge's reference to a sample that was put."""
    specs = {name: spec_from_tensor(name, tensor) for name, tensor in tensors.items()}
    target, form = metadata.get("target_feature_name", "target"), metadata.get("target_repr")
    if form and target in specs:
        # The version of the vocabulary map travels with the target: the trainer refuses a map that it does not have.
        version = metadata.get("vocab_map_version")
        meta = {"vocab_map_version": version} if version else {}
        specs[target] = replace(specs[target], target_repr=form, target_meta=meta)
    carried = {} if ref.description is None else {DESCRIPTION: ref.description.decode()}
    return Reference(
        sample_id=ref.sample,
        run_id=str(metadata.get("run_id", "unknown")),
        source_task_id=metadata.get("source_task_id"),
        feature_store_uri=f"{SCHEME}://{quote(store_id, safe='')}/{quote(ref.sample, safe='')}?{GENERATION}={ref.generation}",
        feature_keys={name: f"{ref.sample}/{name}" for name in specs},
        feature_specs=specs,
        strategy=metadata.get("strategy", "eagle3"),
        schema_version=int(metadata.get("schema_version", SCHEMA_VERSION)),
        target_model_version=str(metadata.get("target_model_version", "unknown")),
        draft_weight_version=metadata.get("draft_weight_version"),
        tokenizer_version=str(metadata.get("tokenizer_version", "unknown")),
        num_tokens=int(metadata.get("num_tokens", 0)),
        estimated_bytes=nbytes,
        metadata={**{k: v for k, v in metadata.items() if k != "num_tokens"}, GENERATION: told(ref.generation), **carried},
    )


def custody_of(store_id: str, sample: Reference) -> SampleRef | None:
    """The incarnation that a reference means; None if another writer wrote it and it was never adopted as this
    object."""
    parts = urlsplit(sample.feature_store_uri)
    if parts.netloc and unquote(parts.netloc) != store_id:
        raise KeyError(f"sample {sample.sample_id} belongs to the store {unquote(parts.netloc)}, not to {store_id}")
    if parts.scheme != SCHEME:
        noted = sample.metadata.get(CUSTODY)
        return None if noted is None else SampleRef(sample.sample_id, int(noted))
    named = parse_qs(parts.query).get(GENERATION, ["0"])[0]
    carried = sample.metadata.get(GENERATION, named)
    if _number(carried) != _number(named):
        raise KeyError(f"sample {sample.sample_id}: the reference names generation {named} and carries {carried}")
    description = sample.metadata.get(DESCRIPTION)
    return SampleRef(sample.sample_id, _number(named), None if description is None else str(description).encode())


def writer_generation(sample: Reference) -> int:
    """The generation that a serving engine wrote under."""
    generation = sample.metadata.get(GENERATION)
    if generation is None:
        raise ValueError(f"sample {sample.sample_id} cannot be adopted: its reference carries no generation")
    return _number(generation)


def written_spec(generation: int) -> TensorSpec:
    """The empty tensor that records the writer's generation."""
    return TensorSpec(WRITTEN, "uint8", (0, generation))


def is_meant(tensors: Iterable[TensorSpec], sample: Reference) -> bool:
    """Whether a live sample of these tensors is the one that a reference means that was never adopted as this object."""
    return was_written_as(tensors, _number(sample.metadata.get(GENERATION, 0)))


def not_in_custody(store_id: str, sample: Reference) -> str:
    """What to say of a reference that SpecForge's own store, or a serving engine, made."""
    return (
        f"sample {sample.sample_id} is not in the Tensorhold store {store_id}: it has ended, or the process that made "
        f"{sample.feature_store_uri} keeps its samples in SpecForge's own store; {TOGETHER}"
    )


def was_written_as(tensors: Iterable[TensorSpec], generation: int) -> bool:
    """Whether a sample of these tensors is the one that a serving engine wrote under this generation."""
    return written_spec(generation) in tuple(tensors)


def tensor_spec(spec: FeatureSpec) -> TensorSpec:
    """Translates a feature's spec."""
    return TensorSpec(spec.name, spec.dtype, tuple(int(length) for length in spec.shape))
