"""Updates of 10,000,000 float32 parameters on one core: dps, PyTorch, and the memory.

    python tests/benchmarks/optimizers.py [--size N] [--repeat K] [--quick]

GB/s are the bytes of the vectors that an update must read and write by its time. Beside them a
loop in C that reads and writes as many vectors and only adds, the STREAM-like limit of the
memory for just this. Everything is interleaved; medians.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dps._kernels.optimizers import UpdateKernel
from measure import bars, installed, options, table

#: Vectors that an update reads, and writes.
TRAFFIC = {"sgd": (2, 1), "momentum": (3, 2), "adagrad": (3, 2), "adam": (4, 3)}

LOOPS = """
#include <stddef.h>
void add1(float *restrict p, const float *restrict g, float *m, float *v,
          size_t n, size_t step) {
    for (size_t i = 0; i < n; i++) p[i] += g[i];
}
void add2(float *restrict p, const float *restrict g, float *restrict m, float *v,
          size_t n, size_t step) {
    for (size_t i = 0; i < n; i++) { m[i] += g[i]; p[i] += m[i]; }
}
void add3(float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
          size_t n, size_t step) {
    for (size_t i = 0; i < n; i++) { m[i] += g[i]; v[i] += g[i]; p[i] += m[i] + v[i]; }
}
"""


def vectors(size: int) -> tuple[Any, Any, Any, Any]:
    """Parameters, a gradient and two vectors of state; each contender has its own.

    With one set for all, each would find in cache what the one before it left there.
    """
    random = np.random.default_rng(0)
    params, grad = (random.standard_normal(size, dtype=np.float32) for _ in range(2))
    return params, grad, np.zeros_like(params), np.ones_like(params)


def plain_loops(size: int) -> dict[str, Callable[[int], Any]]:
    """Loops in C that read and write as many vectors as the optimizers and only add."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loops.c"), Path(folder, "loops.so")
        source.write_text(LOOPS)
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source]
        subprocess.run(command, check=True)
        loops = ctypes.CDLL(str(library))
    functions = {n: getattr(loops, f"add{n}") for n in (1, 2, 3)}
    for function in functions.values():
        # The last one is the number of the step, which they do not look at.
        function.argtypes = [np.ctypeslib.ndpointer(np.float32)] * 4 + [ctypes.c_size_t] * 2
    return {
        f"adding, {1 + n} read and {n} written": partial(add, *vectors(size), size)
        for n, add in functions.items()
    }


def of_dps(size: int) -> dict[str, Callable[[int], Any]]:
    """Its kernels."""
    kernels = {
        "sgd": (UpdateKernel("sgd"), 0),
        "momentum": (UpdateKernel("momentum", momentum=0.9), 1),
        "adagrad": (UpdateKernel("adagrad"), 1),
        "adam": (UpdateKernel("adam"), 2),
    }

    def updating(kernel: UpdateKernel, rows: int) -> Callable[[int], Any]:
        params, grad, zeros, ones = vectors(size)
        state = np.stack([zeros, ones][2 - rows :]) if rows else np.empty((0, size), np.float32)
        return lambda step: kernel.update(params, grad, state, step=step, lr=1e-3)

    return {f"dps {name}": updating(kernel, rows) for name, (kernel, rows) in kernels.items()}


def of_torch(size: int) -> dict[str, Callable[[int], Any]]:
    """Its implementations of Adam."""
    import torch

    torch.set_num_threads(1)
    steps = {}
    for name in ("fused", "foreach"):
        params, grad, *_ = vectors(size)
        tensor = torch.from_numpy(params).requires_grad_()
        tensor.grad = torch.from_numpy(grad)
        adam = torch.optim.Adam([tensor], lr=1e-3, **{name: True})
        steps[f"PyTorch Adam ({name})"] = lambda step, adam=adam: adam.step()
    return steps


def main() -> None:
    chosen = options(__doc__, repeat=31, size=10_000_000)
    size = 10_000 if chosen.quick else chosen.size
    contenders = of_dps(size)
    try:
        contenders |= plain_loops(size)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the memory's limit: no C compiler ({error}), left out\n")
    if installed("PyTorch", "torch"):
        contenders |= of_torch(size)
    traffic = {}
    for name in contenders:
        words = name.split()
        kernel = words[1].lower().rstrip(",")
        read, written = TRAFFIC.get(kernel) or (int(words[1]), int(words[4]))
        traffic[name] = (read + written, 4 * size * (read + written))

    times: dict[str, list[float]] = {name: [] for name in contenders}
    for step in range(1, chosen.repeat + 3):
        for name, update in contenders.items():
            began = time.perf_counter()
            update(step)
            times[name].append(time.perf_counter() - began)
    seconds = {name: statistics.median(values[2:]) for name, values in times.items()}
    speeds = {name: traffic[name][1] / seconds[name] for name in contenders}
    limits = {traffic[name][0]: speeds[name] for name in contenders if name.startswith("adding")}

    def share(name: str) -> float:
        return speeds[name] / limits.get(traffic[name][0], np.nan)

    print(f"{size:,} float32, 1 core\n")
    table(
        ("an update", "ms", "GB/s", "of adding as many"),
        (
            (name, f"{1e3 * seconds[name]:.1f}", f"{speeds[name] / 1e9:.1f}", f"{share(name):.0%}")
            for name in contenders
        ),
    )
    asked = [
        (f"{name}: share of the memory's speed", share(name), ">=", 0.85)
        for name in contenders if name.startswith("dps")
    ]  # fmt: skip
    fused = seconds.get("PyTorch Adam (fused)", np.nan) / seconds["dps adam"]
    bars(("Adam: speed as a multiple of PyTorch's fused", fused, ">=", 0.95), *asked)


if __name__ == "__main__":
    main()
