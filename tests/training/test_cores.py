"""Replicas are as many as the cores that the process may use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cgroups
import numpy as np
import pytest
from joblib import Parallel, delayed

import dps
from dps._cores import cgroup_cores, usable_cores

FIT = """
import numpy as np, dps
from dps._cores import usable_cores
X = np.random.default_rng(0).normal(size=(1 << 16, 20))
model = dps.LinearRegressor(optimizer="adagrad", max_iter=1).fit(X, X[:, 0])
print(usable_cores(), len(model.plan_.ranks))
"""


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, [2]),  # a container sees its own group as root
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, [3]),
        ("0::/a\n", {"unified/a/cpu.max": "100000 100000\n"}, [1]),
        ("4:cpu,cpuacct:/docker/1\n3:cpuset:/x\n",
         {"cpu,cpuacct/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
          "cpuset/x/cpu.max": "100000 100000\n"}, [2]),
        ("1:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
         []),
        ("0::/a\n", {"a/cpu.max": "no numbers\n"}, []),
        (None, {}, []),
    ],
    ids=["container", "above", "hybrid", "version 1", "no quota", "damaged", "no cgroups"],
)  # fmt: skip
def test_quotas_of_cgroups(
    groups: str | None, files: dict[str, str], found: list[int], tmp_path: Path
) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert sorted(set(cgroup_cores(str(tmp_path)))) == found


@pytest.fixture
def one_core() -> Iterator[Path]:
    """A real cgroup with a quota of one core."""
    with cgroups.one_core() as group:
        if group is None:
            pytest.skip("no cgroup can be made here")
        yield group


@pytest.mark.skipif(usable_cores() == 1, reason="there is one core")
def test_a_fit_in_a_container_of_one_core_has_one_replica(one_core: Path) -> None:
    enter = f"open({str(one_core / 'cgroup.procs')!r}, 'w').write('0')\n"
    assert _printed(enter + FIT) == "1 1"


@pytest.mark.skipif(usable_cores() == 1, reason="there is one core")
def test_joblib_and_multiprocessing_share_the_cores_out() -> None:
    def n_replicas() -> int:
        return len(
            dps.LinearRegressor(optimizer="adagrad", batch_size=1 << 14, tol=None, max_iter=1)
            .fit(X, X[:, 0])
            .plan_.ranks
        )

    X = np.random.default_rng(0).normal(size=(1 << 16, 20))
    assert n_replicas() > 1
    assert Parallel(n_jobs=2, backend="threading")([delayed(n_replicas)()] * 2) == [1, 1]
    assert _printed(FIT, LOKY_MAX_CPU_COUNT="1") == "1 1"
    pool = "import multiprocessing\nmultiprocessing.get_context('fork').Pool(1).apply(exec, [{!r}])"
    assert _printed(pool.format(FIT)).endswith(" 1")


def _printed(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
