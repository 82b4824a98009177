"""Functions that are passed on by processes which do not know them."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import cloudpickle
import numpy as np
import pytest
from dask.tokenize import tokenize
from distributed import Client
from distributed.protocol import dask_deserialize, dask_serialize, pickle as of_dask

import dps
from dps.data.collections.partitions import Partition
from dps.data.collections.sealed import identity, sealed
from dps.estimators.predict.predict import LinearRaw, RawPredictor
from dps.losses import LogLoss

#: Passes a pickle on, as Dask's scheduler does, in a process that has no dps.
PASS_ON = """
import sys

sys.modules["dps"] = None  # as if it were not installed
from distributed.protocol import pickle

function = pickle.loads(sys.stdin.buffer.read())
for _ in range(3):
    function = pickle.loads(pickle.dumps(function))
try:
    function()
except ModuleNotFoundError:
    sys.stdout.buffer.write(pickle.dumps(function))
"""


def passed_on(pickled: bytes) -> bytes:
    done = subprocess.run([sys.executable, "-c", PASS_ON], input=pickled, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps, of_dask.dumps])
@pytest.mark.parametrize("pass_on", [bytes, passed_on])
def test_what_comes_out_is_what_went_in(
    dumps: Callable[[Any], bytes], pass_on: Callable[[bytes], bytes]
) -> None:
    part = Partition(1, 2, None)
    function = pickle.loads(pass_on(dumps(sealed(identity, part))))
    assert function() == part
    assert function.func is identity  # opened already: nothing is imported in the call


def test_here_it_is_the_function() -> None:
    half = sealed(Fraction, 1)
    assert half(2) == Fraction(1, 2)
    assert half.__name__ == "Fraction"
    assert sealed(operator.add)("a", "b") == "ab"


class OfDaskAlone:
    """Something that only Dask knows how to serialise, as an h5py.Dataset."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        raise TypeError("it cannot be pickled")


@dask_serialize.register(OfDaskAlone)
def _(value: OfDaskAlone) -> tuple[dict[str, str], list[bytes]]:
    return {"name": value.name}, []


@dask_deserialize.register(OfDaskAlone)
def _(header: dict[str, str], frames: list[bytes]) -> OfDaskAlone:
    return OfDaskAlone(header["name"])


def test_what_dask_can_send_can_be_sealed() -> None:
    assert pickle.loads(pickle.dumps(sealed(identity, OfDaskAlone("data"))))().name == "data"


def test_what_cannot_be_sent_is_named(client: Client) -> None:
    @dataclass(frozen=True)
    class Guarded(LogLoss):
        lock: Any = field(default_factory=threading.Lock)

    with pytest.raises(TypeError, match=r"^Guarded\.lock cannot be sent to workers \(cannot pick"):
        dps.LinearClassifier(loss=Guarded(), client=client).fit(np.eye(4), [0, 1, 0, 1])


def test_equal_functions_have_equal_tokens_and_others_other_ones() -> None:
    def predictor(value: float) -> RawPredictor:
        return RawPredictor(LinearRaw(np.full((2, 1), value), np.zeros(1)), np.ravel)

    functions = [
        sealed(identity), sealed(operator.add), sealed(identity, 1), sealed(identity, 2),
        sealed(lambda: 1), sealed(lambda: 2), sealed(identity, predictor(1)),
        sealed(identity, predictor(2)),
    ]  # fmt: skip
    tokens = [tokenize(function) for function in functions]
    assert len(set(tokens)) == len(tokens)
    assert tokens == [tokenize(function) for function in functions]
    assert tokenize(sealed(identity, predictor(1))) == tokens[-2]
