"""Every benchmark, as Markdown: the tables of README and docs/inside/performance.md.

    python tests/benchmarks [--quick] [NAME ...]

With names only these, for instance `flights dense`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHARED = {"__main__", "across", "measure", "namespaces", "peers", "public_data", "small_sets"}
VERSIONS = (
    "dps", "numpy", "scipy", "scikit-learn", "dask", "dask-ml", "torch", "vowpalwabbit",
)  # fmt: skip


def processor() -> str:
    """Its name, as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> str:
    found = []
    for package in VERSIONS:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def main() -> int:
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in SHARED)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="each once, on little data")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(names):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores of {processor()}, "
          f"{platform.system()}, Python {platform.python_version()}; {versions()}.\n")  # fmt: skip
    failed = []
    for name in chosen.names or names:
        script = HERE / f"{name}.py"
        title = ast.get_docstring(ast.parse(script.read_text())).splitlines()[0]
        print(f"## {name}\n\n{title}\n", flush=True)
        command = [sys.executable, str(script), *(["--quick"] if chosen.quick else [])]
        if subprocess.run(command).returncode:
            failed.append(name)
            print("This one failed.\n", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
