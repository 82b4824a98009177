"""Values as JSON and named arrays: what a file may contain, and nothing else.

A value has a kind that is known here (numbers, texts, arrays, lists) or that the caller names.
Reading makes values of these kinds only: it imports nothing, calls nothing by a name in the file,
and checks every dtype, shape and field.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from dps._checks import check_fields

#: Dtypes of arrays: bool, integers, floats, dates, durations and fixed-width text.
_DTYPES = "biufMmUS"
_LAST_CHARACTER = 0x10FFFF


@dataclass(frozen=True)
class Kind:
    """A kind of value, described by the fields that make it."""

    name: str  # its name in files
    type: type  # the exact type of its values
    fields: tuple[str, ...]
    # Returns the fields of a value, which are values themselves.
    write: Callable[[Any], Mapping[str, object]]
    # Makes a value from fields as keywords; raises ValueError or TypeError.
    read: Callable[..., Any]

    @classmethod
    def of(
        cls,
        name: str,
        made: Any,
        check: Callable[[Any], None] | None = None,
        names: Iterable[str] | None = None,
    ) -> Kind:
        """Return the kind of a class's instances, whose attributes are its parameters.

        Values that are read must match the type hints; the class, or `check`, does further checks.
        """
        names = tuple(signature(made).parameters if names is None else names)

        def write(value: Any) -> dict[str, Any]:
            return {each: getattr(value, each) for each in names}

        def read(**values: Any) -> Any:
            check_fields(made, values)
            value = made(**values)
            if check is not None:
                check(value)
            return value

        return cls(name, made, names, write, read)


class RecordWriter:
    """Makes records of values, and collects their arrays.

    arrays: dict of str to array, named by the records.

    Examples
    --------
    >>> writer = RecordWriter([])
    >>> writer({"a": (1, 2.5)}, "given")
    {'kind': 'dict', 'items': [['a', {'kind': 'tuple', 'items': [1, 2.5]}]]}
    >>> RecordReader([], writer.arrays)(writer({"a": (1, 2.5)}, "given"), "given")
    {'a': (1, 2.5)}
    """

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._kinds = {kind.type: kind for kind in kinds}
        self._known: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any, path: str) -> Any:
        """Return the record of a value.

        path: its place, by which arrays are named.
        Raises TypeError: the value, or a part of it, has no known kind.
        """
        kind = self._kinds.get(type(value))
        if kind is not None:
            written = kind.write(value)
            inside = {name: self(written[name], f"{path}.{name}") for name in kind.fields}
            return {"kind": kind.name, **inside}
        if isinstance(value, np.generic) and value.dtype.kind in "biufU":
            value = value.item()
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is list:
            return self._items(value, path)
        if type(value) is tuple:
            return {"kind": "tuple", "items": self._items(value, path)}
        if type(value) is dict:
            pairs = enumerate(value.items())
            items = [self._items(pair, f"{path}.{number}") for number, pair in pairs]
            return {"kind": "dict", "items": items}
        if type(value) is np.ndarray:
            return self._array(value, path)
        if isinstance(value, np.datetime64 | np.timedelta64):
            return {"kind": "scalar", "of": self._array(np.array([value]), path)}
        if type(value) is np.random.RandomState:
            name, keys, *rest = value.get_state(legacy=True)
            return {"kind": "RandomState", "of": [name, self(keys, f"{path}.keys"), *rest]}
        return _plain(value, path)

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self(value, f"{path}.{number}") for number, value in enumerate(values)]

    def _array(self, value: np.ndarray, path: str) -> Any:
        if value.dtype == object:
            if value.ndim != 1:
                raise TypeError(f"{path} is an array of objects of {value.ndim} dimensions")
            return {"kind": "objects", "items": self._items(value.tolist(), path)}
        if id(value) not in self._known:
            dtype = value.dtype.newbyteorder("<")
            stored = _stored(dtype)
            flat = np.ascontiguousarray(value, dtype).reshape(-1)
            self.arrays[path] = flat.view(stored[0]).reshape((*value.shape, *stored[1]))
            record = {"kind": "array", "name": path, "dtype": dtype.str, "shape": [*value.shape]}
            self._known[id(value)] = record, value  # holds the value, so that its id is not reused
        return self._known[id(value)][0]


def _plain(value: Any, path: str) -> Any:
    """Return the record of a value without parts."""
    if type(value) is float:
        return value if math.isfinite(value) else {"kind": "float", "is": repr(value)}
    if isinstance(value, np.dtype) or value is np.float32 or value is np.float64:
        return {"kind": "dtype", "is": np.dtype(value).str}
    if type(value) is bytes:
        return {"kind": "bytes", "is": value.hex()}
    if type(value) in (datetime.date, datetime.datetime):
        return {"kind": type(value).__name__, "is": value.isoformat()}
    raise TypeError(f"{path} is {value!r}, of the type {type(value).__name__}")


class RecordReader:
    """Makes values from records.

    arrays: mapping of str to array.
    left: arrays that no record has named so far.
    """

    def __init__(self, kinds: Iterable[Kind], arrays: Mapping[str, np.ndarray]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._arrays = arrays
        self.left = set(arrays)

    def __call__(self, record: Any, path: str) -> Any:
        """Return the value of a record.

        Raises ValueError: the record is not valid for its kind.
        """
        try:
            return self._value(record, path)
        except RecursionError:
            raise ValueError(f"{path[:80]} is nested too deeply") from None

    def _value(self, record: Any, path: str) -> Any:
        if record is None or isinstance(record, bool | int | float | str):
            return record
        if isinstance(record, list):
            return [self(item, f"{path}.{number}") for number, item in enumerate(record)]
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise ValueError(f"{path} is {record!r}, which has no kind")
        name = record["kind"]
        given = {each: value for each, value in record.items() if each != "kind"}
        if name in _OWN:
            return _OWN[name](self, given, path)
        kind = self._kinds.get(name)
        if kind is None:
            raise ValueError(f"{path} is of the kind {name!r}, and there are {sorted(self._kinds)}")
        if set(given) != set(kind.fields):
            raise ValueError(f"{path} has {sorted(given)}, and a {name} has {sorted(kind.fields)}")
        values = {each: self(value, f"{path}.{each}") for each, value in given.items()}
        try:
            return kind.read(**values)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{path}: {error}") from error

    def _items(self, record: dict[str, Any], path: str) -> list[Any]:
        return self(_field(record, "items", list, path), path)

    def _pairs(self, record: dict[str, Any], path: str) -> list[Any]:
        pairs = self._items(record, path)
        try:
            return [(key, value) for key, value in pairs if hash(key) is not None]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is no dict: {error}") from error

    def _float(self, record: dict[str, Any], path: str) -> float:
        text = _field(record, "is", str, path)
        if text not in ("nan", "inf", "-inf"):
            raise ValueError(f"{path} is {text!r}, which is no such number")
        return float(text)

    def _objects(self, record: dict[str, Any], path: str) -> np.ndarray:
        items = self._items(record, path)
        found = np.empty(len(items), object)
        found[:] = items
        return found

    def _array(self, record: dict[str, Any], path: str) -> np.ndarray:
        record = {each: value for each, value in record.items() if each != "kind"}
        if set(record) != {"name", "dtype", "shape"}:
            raise ValueError(f"{path} is no array: it has {sorted(record)}")
        name, shape = record["name"], record["shape"]
        if not isinstance(shape, list):
            raise ValueError(f"{path} has the shape {shape!r}, which is none")
        if not isinstance(name, str) or name not in self._arrays:
            raise ValueError(f"{path} is the array {name!r}, which is not in the file")
        array = self._arrays[name]
        dtype = _dtype(record["dtype"], path)
        stored, inner = _stored(dtype)
        if array.dtype != stored or [*array.shape] != [*shape, *inner]:
            raise ValueError(
                f"the array {name!r} is {array.dtype} of the shape {array.shape}, where "
                f"{dtype.str} of the shape {shape} was saved"
            )
        if dtype.kind == "U" and array.size and array.max() > _LAST_CHARACTER:
            raise ValueError(f"the array {name!r} has values that are no text")
        if dtype.kind == "b" and array.size and array.view("u1").max() > 1:
            raise ValueError(f"the array {name!r} has values that are neither true nor false")
        self.left.discard(name)
        if stored == dtype:
            return array
        return np.ascontiguousarray(array).view(dtype).reshape(shape)

    def _scalar(self, record: dict[str, Any], path: str) -> Any:
        array = self._array(_field(record, "of", dict, path), path)
        if array.shape != (1,):
            raise ValueError(f"{path} is no single value, but of the shape {array.shape}")
        return array[0]

    def _random_state(self, record: dict[str, Any], path: str) -> np.random.RandomState:
        given = self(_field(record, "of", list, path), path)
        # `set_state` does not check its arguments, such as the position among the keys.
        name, keys, at, has_gauss, gauss = given if len(given) == 5 else (None,) * 5
        if not (
            name == "MT19937"
            and isinstance(keys, np.ndarray)
            and (keys.dtype, keys.shape) == (np.uint32, (624,))
            and type(at) is int
            and 0 <= at <= 624
            and has_gauss in (0, 1)
            and isinstance(gauss, int | float)
            and math.isfinite(gauss)
        ):
            raise ValueError(f"{path} is no state of random numbers")
        state = np.random.RandomState()
        state.set_state(("MT19937", keys, at, int(has_gauss), float(gauss)))
        return state


#: Kinds of this module by their names.
_OWN: dict[str, Callable[[RecordReader, dict[str, Any], str], Any]] = {
    "float": RecordReader._float,
    "bytes": lambda read, r, path: bytes.fromhex(_field(r, "is", str, path)),
    "date": lambda read, r, path: datetime.date.fromisoformat(_field(r, "is", str, path)),
    "datetime": lambda read, r, path: datetime.datetime.fromisoformat(_field(r, "is", str, path)),
    "tuple": lambda read, r, path: tuple(read._items(r, path)),
    "dict": lambda read, r, path: dict(read._pairs(r, path)),
    "dtype": lambda read, r, path: _dtype(_field(r, "is", str, path), path),
    "array": RecordReader._array,
    "objects": RecordReader._objects,
    "scalar": RecordReader._scalar,
    "RandomState": RecordReader._random_state,
}


def _field(record: dict[str, Any], name: str, kind: type, path: str) -> Any:
    """Return the only field of a record."""
    if set(record) - {"kind"} != {name} or not isinstance(record[name], kind):
        raise ValueError(f"{path} has {sorted(record)}, where {name!r} alone was to be")
    return record[name]


def _dtype(text: Any, path: str) -> np.dtype[Any]:
    """Return a dtype without objects or fields, by its name."""
    try:
        dtype = np.dtype(text) if isinstance(text, str) else np.dtype(object)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    known = dtype.kind in _DTYPES and dtype.subdtype is None and dtype.itemsize > 0
    if not known or (dtype.kind == "f" and dtype.itemsize > 8):
        raise ValueError(f"{path} has the dtype {text!r}; arrays of a file have numbers or texts")
    return dtype


def _stored(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype in which an array is stored, and the values per element."""
    if dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8):
        return dtype, ()
    if dtype.kind in "Mm":
        return np.dtype("<i8"), ()
    if dtype.kind == "U" and dtype.itemsize > 0:
        return np.dtype("<u4"), (dtype.itemsize // 4,)
    if dtype.kind == "S" and dtype.itemsize > 0:
        return np.dtype("u1"), (dtype.itemsize,)
    raise TypeError(f"an array of the dtype {dtype} cannot be written")
