"""Values and errors: what they are without a cluster."""

from __future__ import annotations

import json
import pickle

import pytest

import tensorhold
from tensorhold import SampleRef, TensorSpec, errors


def test_references_have_a_text_form_a_json_form_and_can_be_pickled() -> None:
    ref = SampleRef("run/3#gx", 12)
    assert str(ref) == "run/3#gx#g12"
    assert SampleRef.parse(str(ref)) == ref
    assert SampleRef.from_dict(json.loads(json.dumps(ref.to_dict()))) == ref
    assert pickle.loads(pickle.dumps(ref)) == ref
    assert {ref: 1}[SampleRef("run/3#gx", 12)] == 1
    for text in ["", "sample", "#g3", "sample#g", "sample#g-1", "sample#g²"]:
        with pytest.raises(tensorhold.Invalid, match="sample#g3"):
            SampleRef.parse(text)
    with pytest.raises(ValueError):
        SampleRef.from_dict({"sample": "a"})


def test_specs_know_their_size() -> None:
    assert TensorSpec("hidden", "bfloat16", (1, 4096, 12288)).nbytes == 96 << 20
    assert TensorSpec("scalar", "float64", ()).nbytes == 8
    assert TensorSpec("none", "int64", (0, 3)).nbytes == 0
    with pytest.raises(tensorhold.Invalid, match="no such element type"):
        _ = TensorSpec("odd", "float12", (1,)).nbytes


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.NotFound, KeyError),
        (errors.Fenced, KeyError),
        (errors.Capacity, MemoryError),
        (errors.Denied, PermissionError),
        (errors.Invalid, ValueError),
        (errors.Unavailable, ConnectionError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.Timeout, TimeoutError),
        (errors.Unsupported, NotImplementedError),
        (errors.Internal, RuntimeError),
        (errors.Conflict, Exception),
        (errors.Corrupt, Exception),
    ],
)
def test_errors_are_what_python_programs_expect(
    kind: type[tensorhold.TensorholdError], builtin: type[BaseException]
) -> None:
    error = kind("it is so", retry="safe", operation="test.run", facts={"sample": "a", "n": "2"})
    assert isinstance(error, builtin) and isinstance(error, tensorhold.TensorholdError)
    assert str(error) == f"test.run: it is so ({kind.kind}) [sample=a, n=2]"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error)
    assert (again.message, again.retry, again.operation, again.facts) == ("it is so", "safe", "test.run", error.facts)


def test_unusable_settings_are_refused_without_a_cluster() -> None:
    for settings in [{"timeout": 0}, {"lease_seconds": -1.0}, {"master": ""}, {"features": {"chunk_bites": 1}}]:
        with pytest.raises(tensorhold.Invalid):
            tensorhold.open("s", **settings)  # type: ignore[arg-type]
    with pytest.raises(tensorhold.Invalid, match="chunk_bites"):
        tensorhold.open("s", features={"chunk_bites": 1})


def test_settings_keep_passwords_to_themselves() -> None:
    store = tensorhold.open("s", etcd_options={"user": "u", "password": "secret"}, lazy=True)
    assert "secret" not in repr(store.settings) + repr(store)
