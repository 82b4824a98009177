"""The benchmarks run, on little data: they must not rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent / "benchmarks"
DATA = BENCHMARKS.parents[2] / "shared" / "data"


@pytest.mark.skipif(not DATA.exists(), reason="the data of the benchmarks is not here")
def test_flights() -> None:
    command = [sys.executable, str(BENCHMARKS / "flights.py"), "--rows", "20000", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("| dps ")]
    assert [line.split()[2] for line in table] == ["sync", "async", "allreduce"]
    assert all(0.3 < float(line.split("|")[4]) < 0.7 for line in table)
