"""Hypothesis strategies for msgspec structs, read off their annotations: every limit in a format is explored."""

import enum
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

LONG = 4096
"""Lengths are drawn up to here where the format allows more: limits above it have their own tests."""


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a struct class (or a union of them), anywhere within the limits its annotations give."""
    return _values(inspect.type_info(kind))


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _values(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of(*map(_values, types))
        case inspect.EnumType(cls=cls):
            assert issubclass(cls, enum.Enum)
            return st.sampled_from(cls)
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(2**63) if low is None else low, 2**63 - 1 if high is None else high)
        case inspect.StrType(pattern=str() as pattern):
            return st.from_regex(pattern.removesuffix(r"\Z"), fullmatch=True)
        case inspect.StrType(min_length=low, max_length=high):
            return st.text(st.characters(exclude_categories=["Cs"]), min_size=low or 0, max_size=_bound(high))
        case inspect.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=_bound(high))
        case inspect.VarTupleType(item_type=item, min_length=low, max_length=high):
            return st.lists(_values(item), min_size=low or 0, max_size=min(_bound(high), (low or 0) + 4)).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(_values, items))
    raise NotImplementedError(info)


def _bound(limit: int | None) -> int:
    return LONG if limit is None else min(limit, LONG)


def smallest(kind: type[msgspec.Struct]) -> Any:
    """One value of `kind`: every field at its lower limit."""
    return _smallest(inspect.type_info(kind))


def _smallest(info: inspect.Type) -> Any:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            return cls(*(_smallest(field.type) for field in fields))
        case inspect.EnumType(cls=cls):
            return next(iter(cls))
        case inspect.IntType(ge=low):
            return low or 0
        case inspect.StrType(pattern=pattern):
            return "a" if pattern else ""
        case inspect.BytesType(min_length=low):
            return bytes(low or 0)
        case inspect.VarTupleType(item_type=item, min_length=low):
            return tuple(_smallest(item) for _ in range(low or 0))
        case inspect.TupleType(item_types=items):
            return tuple(map(_smallest, items))
    raise NotImplementedError(info)
