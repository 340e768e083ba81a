"""Element types under their names in Tensorhold, numpy and DLPack. Tensorhold's names are torch's."""

from __future__ import annotations

from typing import Final

from tensorhold.errors import Invalid

_NUMPY_NAMES: Final = frozenset(
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
)
"""Types that numpy itself has, under the same names."""

_ML_DTYPES: Final = {
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "float8_e4m3fnuz": "float8_e4m3fnuz",
    "float8_e5m2fnuz": "float8_e5m2fnuz",
    "float8_e8m0fnu": "float8_e8m0fnu",
}
"""Types that the package ``ml_dtypes`` adds to numpy."""

_DLPACK: Final = {
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "bool": (6, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
"""DLPack's code and bits. The codes of the 8-bit floats are those of DLPack 1.1."""

_FROM_DLPACK: Final = {pair: name for name, pair in _DLPACK.items()}

_TYPESTR: Final = {
    "bool": "|b1",
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}
"""The type strings of ``__array_interface__``."""

_FROM_TYPESTR: Final = {text: name for name, text in _TYPESTR.items()}

_FORMATS: Final = {
    "?": "bool",
    "c": "uint8",
    "b": "int8",
    "B": "uint8",
    "e": "float16",
    "f": "float32",
    "d": "float64",
    "Zf": "complex64",
    "Zd": "complex128",
}
"""Formats of the buffer protocol with a fixed size; integers are identified by their size."""


def name_of(dtype: object) -> str:
    """Tensorhold's name of a type that is given as text, a torch type or a numpy type."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    if not isinstance(name, str):
        raise Invalid("an element type is a name such as bfloat16", operation="python.dtype")
    return name.removeprefix("torch.")


def of_array(typestr: str, name: str | None) -> str:
    """The type for an array interface's type string; ``name`` is the array's own name of its type."""
    if name in _ML_DTYPES:
        return _ML_DTYPES[name]
    known = _FROM_TYPESTR.get(typestr)
    if known is None:
        advice = "swap its bytes" if typestr.startswith(">") else "convert it to a plain number type"
        raise Invalid(
            f"arrays of this element type cannot be stored; {advice} first",
            operation="python.dtype",
            facts={"dtype": name or typestr},
        )
    return known


def of_dlpack(code: int, bits: int) -> str:
    """The type for DLPack's code and bits."""
    known = _FROM_DLPACK.get((code, bits))
    if known is None:
        raise Invalid(
            "arrays of this element type cannot be stored; convert it first",
            operation="python.dtype",
            facts={"code": str(code), "bits": str(bits)},
        )
    return known


def of_format(text: str, itemsize: int) -> str:
    """The type for a format of the buffer protocol."""
    plain = text.lstrip("@=<")
    if plain in _FORMATS:
        return _FORMATS[plain]
    if plain in tuple("hilqn"):
        return f"int{8 * itemsize}"
    if plain in tuple("HILQN"):
        return f"uint{8 * itemsize}"
    raise Invalid(
        "buffers of this format cannot be stored; cast the memoryview to bytes first",
        operation="python.dtype",
        facts={"format": text},
    )


def dlpack(dtype: str) -> tuple[int, int] | None:
    """DLPack's code and bits, or None if DLPack does not have the type."""
    return _DLPACK.get(dtype)


def typestr(dtype: str) -> str | None:
    """The type string of ``__array_interface__``, or None if it cannot express the type."""
    return _TYPESTR.get(dtype)


def is_numpys(dtype: str) -> bool:
    """Whether numpy itself has the type."""
    return dtype in _NUMPY_NAMES


def ml_dtypes_name(dtype: str) -> str | None:
    """The name of the type in the package ``ml_dtypes``, or None."""
    return _ML_DTYPES.get(dtype)
