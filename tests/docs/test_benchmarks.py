"""The benchmarks run, on little data: they must not rot."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import simulation
from namespaces import why_not
from public_data import DATA
from simulation import Costs, Model, Network

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = (
    "checkpoint",
    "auto_mode",
    "clicks",
    "defaults",
    "dense",
    "encode",
    "factorization",
    "flights",
    "hosts",
    "large_table",
    "little",
    "memory",
    "monitoring",
    "network",
    "optima",
    "optimizers",
    "penalty",
    "ranks",
    "recovery",
    "recovery_of_peers",
    "regimes",
    "scaling",
    "server",
    "simulation",
    "skewed",
    "slow_replica",
    "spam",
    "staleness",
    "steps",
    "streaming",
    "strength",
    "torch_modules",
    "wide",
)
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the data of the benchmarks is not here")


def run(name: str, *more: str, seconds: float = 280) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(printed: str, start: str = "") -> dict[str, list[str]]:
    """The rows of all tables whose name starts so: their other columns, by name."""
    found: dict[str, list[str]] = {}
    for line in printed.splitlines():
        if line.startswith("| " + start) and not line.startswith("|---"):
            name, *columns = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, columns)
    return found


def check_peer(printed: str, package: str, module: str, row: str) -> None:
    """A peer that is installed has a row; one that is not is left out with a word."""
    if find_spec(module) is None:
        assert f"{package}: not installed, left out" in printed
    else:
        assert rows(printed, row)


def modes(printed: str) -> dict[str, list[str]]:
    found = rows(printed, "dps ")
    assert list(found) == ["dps sync", "dps async", "dps allreduce"]
    return found


@needs_data
def test_flights() -> None:
    printed = run("flights")
    assert all(0.3 < float(columns[2]) < 0.7 for columns in modes(printed).values())
    assert "flights: test log loss" in rows(printed)
    check_peer(printed, "Vowpal Wabbit", "vowpalwabbit", "Vowpal Wabbit")


@needs_data
def test_encode() -> None:
    found = rows(run("encode"))
    for name in ("dps, pair as strings", "pandas, OneHotEncoder, LogisticRegression"):
        assert 0.3 < float(found[name][2]) < 0.8
    assert float(found["dps FrameEncoder"][0]) > 0


@needs_data
def test_streaming() -> None:
    found = rows(run("streaming"))
    losses = {found[name][4] for name in ("dps", "dps, cache='disk'")}
    assert len(losses) == 1
    assert losses.pop().endswith(" (3)")
    assert found["streaming: workers lost"][0] == "0"


def test_dense() -> None:
    printed = run("dense")
    assert all(float(columns[2]) < 1e-2 for columns in modes(printed).values())
    assert "of reading it" in printed
    check_peer(printed, "dask-ml", "dask_ml", "dask-ml LogisticRegression")


def test_checkpoint() -> None:
    found = rows(run("checkpoint"))
    assert int(found["checkpoints"][1]) >= 1
    assert int(found["checkpoints within an epoch"][1]) >= 1
    assert "snapshots within an epoch: training slows by" in found


def test_penalty() -> None:
    found = rows(run("penalty"))
    assert all(float(found[name][2]) < 1.02 for name in ("wine", "breast_cancer", "digits"))


def test_strength() -> None:
    found = rows(run("strength"))
    assert float(found["strength: worst loss by that of one over the rows"][0]) < 1.01
    assert float(found["share of sets that are worse by 1%"][0]) == 0


def test_defaults() -> None:
    printed = run("defaults", "--only", "units", "few", "drift")
    assert float(rows(printed)["units: R2 for y in other units, the largest difference"][0]) < 0.01
    assert rows(printed, "dps")["dps"]
    assert {"breast_cancer", "digits", "wine"} <= set(rows(printed))


def test_little() -> None:
    printed = run("little")
    assert "accuracy 0.97" in printed
    assert {"launching replicas", "all"} <= set(rows(printed))


def test_server() -> None:
    found = rows(run("server"))
    assert {"pull, mapped", "push of 1,000 keys, on one host"} <= set(found)
    assert "server: push_pulls a second through a stream" in found


def test_steps() -> None:
    printed = run("steps")
    assert list(rows(printed, "dps ")) == ["dps sync, whole fit", "dps sync, an epoch"]
    check_peer(printed, "PyTorch", "torch", "PyTorch DDP")


def test_torch_modules() -> None:
    printed = run("torch_modules")
    check_peer(printed, "PyTorch", "torch", "PyTorch DDP")
    if "left out" not in printed:
        assert list(rows(printed, "dps ")) == ["dps sync", "dps async", "dps allreduce"]


def test_scaling() -> None:
    assert len(modes(run("scaling"))) == 3


def test_skewed() -> None:
    printed = run("skewed")
    assert rows(printed, "90% in one")["90% in one"][1] == "44%"
    assert "| no |" not in printed


def test_slow_replica() -> None:
    found = rows(run("slow_replica"))
    shares = {name: int(found[name][0].rstrip("%")) for name in ("sync", "backups=1", "async")}
    assert shares["sync"] <= 26 < min(shares["backups=1"], shares["async"])
    assert found["backups=1"][3] != found["async"][3] == "0%"


def test_auto_mode() -> None:
    scenarios = ["slow", "sparse", "tiny"]
    printed = run("auto_mode", "--only", *scenarios)
    titles = [line for line in printed.splitlines() if line.endswith(": 2.2 s")]
    assert titles == [f"{name}: 2.2 s" for name in scenarios]
    assert printed.count("mode='auto' chose") == len(scenarios)
    assert "chose sync (backups=1, late_gradients='add'): replica 0 takes" in printed


def test_staleness() -> None:
    printed = run("staleness")
    found = rows(printed)
    assert found["fits that were beyond a bound"][0] == "0"
    for name in ("mapped, max_delay=8", "stream, max_delay=8"):
        assert int(found[name][2]) <= 8


def test_network() -> None:
    printed = run("network")
    assert list(rows(printed, "dps sync")) == ["dps sync"]
    check_peer(printed, "PyTorch", "torch", "PyTorch DDP over gloo")
    assert float(rows(printed)["network: times scikit-learn"][0]) > 0


def test_factorization() -> None:
    printed = run("factorization")
    assert list(rows(printed, "dps ")) == ["dps sync", "dps async", "dps sync, its penalty"]
    check_peer(printed, "PyTorch", "torch", "PyTorch, Adagrad")
    if DATA.exists():
        assert rows(printed)["films: log loss of DeepFM"][2] == "yes"


def test_large_table() -> None:
    found = rows(run("large_table"))
    assert found["table with state"][2] == "4"
    assert float(found["fullest worker"][0]) < 0.95


def test_optima() -> None:
    found = rows(run("optima"))
    assert float(found["optima: objective above the best, as a share"][0]) < 1e-3
    assert float(found["made, log_loss, l1: saga"][0]) > 0


def test_memory() -> None:
    found = rows(run("memory"))
    assert {"float32, sync", "CSR float32, sync", "dataframe float32, sync"} <= set(found)
    assert {"one replica", "scikit-learn"} <= set(found)


def test_one_command_runs_them_by_name() -> None:
    second = "spam" if DATA.exists() else "little"
    command = [sys.executable, str(BENCHMARKS), "--quick", "optimizers", second]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    both = done.stdout
    headings = [line for line in both.splitlines() if line.startswith("## ")]
    assert headings == ["## optimizers", f"## {second}"]
    optimizers, mails = both.split(f"## {second}")
    names = ["dps sgd", "dps momentum", "dps adagrad", "dps adam"]
    assert list(rows(optimizers, "dps "))[:4] == names
    check_peer(optimizers, "PyTorch", "torch", "PyTorch Adam (fused)")
    if second == "spam":
        accuracies = [float(columns[2]) for name, columns in rows(mails).items()
                      if name.startswith(("dps", "scikit"))]  # fmt: skip
        assert len(accuracies) == 6
        assert all(0.8 < accuracy <= 1 for accuracy in accuracies)


def test_one_command_knows_all() -> None:
    command = [sys.executable, str(BENCHMARKS), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert set(NAMES) <= set(done.stdout.replace(",", " ").split())


def test_clicks() -> None:
    printed, files = run("clicks").split("rows from a file")
    first, second = printed.split("rows a day")
    found = rows(first, "dps")
    assert {"dps LinearClassifier", "dps FMClassifier, logarithms"} <= set(found)
    assert len(rows(second, "dps")["dps FMClassifier"]) == 4
    assert {"dps LinearClassifier", "dps, 2^22 shared buckets"} <= set(rows(files))


def test_ranks() -> None:
    printed = run("ranks")
    assert {"0, threads", "0, mapped", "0, stream"} <= set(rows(printed))
    assert "mapped over stream" in printed


def test_monitoring() -> None:
    found = rows(run("monitoring"))
    assert {"dense fits, 20,000 x 100", "synchronous steps, 2 epochs"} <= set(found)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_hosts() -> None:
    printed = run("hosts", seconds=280)
    assert len(modes(printed)) == 3
    check_peer(printed, "PyTorch", "torch", "PyTorch DDP")
    assert list(rows(printed, "bfloat16"))[:2] == ["bfloat16, sync", "bfloat16, allreduce"]
    assert "allreduce (period=16)" in rows(printed)
    parts = [line for line in printed.splitlines() if line.isalpha()]
    assert parts[:4] == ["steps", "shards", "large", "layers"]
    assert parts[4:] == ["wire", "quality", "sparse", "fits", "tls"]


def test_simulation() -> None:
    printed = run("simulation")
    found = rows(printed)
    assert float(found["message"][0]) > 0
    assert {"2, sync", "2, allreduce", "2, async", "sync, racks", "allreduce, ring"} <= set(found)


def test_simulated_steps_take_what_their_messages_do() -> None:
    network, model = Network(8, cores=1, bandwidth=0, latency=1.0), Model(10, compute=100.0)
    nothing = Costs(message=0, byte=0, add=0, update=0)
    assert simulation.sync(nothing, network, model, 3, 1) == 102  # there and back
    assert simulation.sync(nothing, network, model, 3, 8) == 102
    assert simulation.asynchronous(nothing, replace(network, cores=2), model, 3, 1) == 102
    assert simulation.ring(nothing, network, model, 3, 1) == 100 + 2 * 7
    assert simulation.racks(nothing, network, model, 3, 1) == 104
    assert simulation.local(nothing, network, model, 3, 1) == 100 + 2 / 16
    # The host of the shard takes 7 messages, wakes 8 threads, and sends 7 answers.
    messages = replace(nothing, message=1.0)
    assert simulation.sync(messages, network, model, 1, 1) == 100 + 1 + 1 + 7 + 8 + 7 + 1 + 1
    cables = replace(network, bandwidth=20.0)  # bytes a second: a vector takes 2 s
    assert simulation.sync(nothing, cables, model, 1, 1) == 100 + 2 + 1 + 7 * 2 + 7 * 2 + 1 + 2


def test_wide() -> None:
    printed = run("wide")
    found = rows(printed, "dps ")
    assert len(found) == 4
    assert all(float(cell.replace(",", "")) > 0 for cells in found.values() for cell in cells)
