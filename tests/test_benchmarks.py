"""The benchmarks run, on little data: they must not rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent / "benchmarks"
DATA = BENCHMARKS.parents[2] / "shared" / "data"


def run(name: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not DATA.exists(), reason="the data of the benchmarks is not here")
def test_flights() -> None:
    printed = run("flights.py", "--rows", "20000", "--repeat", "1")
    table = [line for line in printed.splitlines() if line.startswith("| dps ")]
    assert [line.split()[2] for line in table] == ["sync", "async", "allreduce"]
    assert all(0.3 < float(line.split("|")[4]) < 0.7 for line in table)


def test_dense() -> None:
    printed = run("dense.py", "--rows", "20000", "--repeat", "1")
    table = [line for line in printed.splitlines() if line.startswith("| dps ")]
    assert [line.split()[2] for line in table] == ["sync", "async", "allreduce"]
    assert all(float(line.split("|")[4]) < 1e-2 for line in table)
    assert "both processes summing the same" in printed


def test_little() -> None:
    printed = run("little.py", "--repeat", "2")
    assert "accuracy 0.97" in printed
    assert len([line for line in printed.splitlines() if line.endswith(" ms")]) == 7
