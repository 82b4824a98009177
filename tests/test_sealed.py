"""Functions that are passed on by processes which do not know them."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cloudpickle
import pytest
from distributed.protocol import pickle as of_dask

from dps.data.partitions import Partition
from dps.data.sealed import itself, sealed

#: Passes a pickle on, as Dask's scheduler does, in a process that has no dps.
PASS_ON = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "dps":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
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
    function = pickle.loads(pass_on(dumps(sealed(itself, part))))
    assert function() == part
    assert function.func is itself  # opened already: nothing is imported in the call


def test_here_it_is_the_function() -> None:
    half = sealed(Fraction, 1)
    assert half(2) == Fraction(1, 2)
    assert half.__name__ == "Fraction"
    assert sealed(operator.add)("a", "b") == "ab"
