"""``python -m dps [SCHEDULER]``: the facts for a bug report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import dps
from dps._kernels.build import DEBUG, INSTRUCTIONS, STABLE_ABI
from dps._runtime.shared.words import PORTABLE
from dps.cli import refusals
from dps.server.memory.files import folder

#: Extras for developers of dps.
_OF_DEVELOPERS = {"benchmarks", "dev", "docs", "examples", "test"}


def _packages() -> dict[str, list[str]]:
    """Return the packages that dps needs or can use, with the extras that need them."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in importlib.metadata.requires("dps") or ():
        extra = re.search(r"extra == ['\"](\w+)", line)
        if (name := re.match(r"[\w.-]+", line)) and not (extra and extra[1] in _OF_DEVELOPERS):
            found[name[0]] += [extra[1]] if extra else []
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _here() -> Iterator[tuple[str, str]]:
    """Yield facts about this process."""
    build = [f"instructions: {INSTRUCTIONS}"]
    build += ["stable ABI"] if STABLE_ABI else []
    build += ["bounds checks"] if DEBUG else []
    build += ["portable"] if PORTABLE else []
    memory = folder()
    space = shutil.disk_usage(memory)
    yield "dps", f"{dps.__version__}, {Path(dps.__file__).parent}"
    yield "build", ", ".join(build)
    yield "python", f"{sys.version.split()[0]}, {sys.executable}"
    yield "platform", f"{platform.platform()}, {os.cpu_count()} processors"
    yield str(memory), f"{space.free / 2**30:.1f} of {space.total / 2**30:.1f} GiB are free"
    for package, extras in _packages().items():
        wanted_by = f" ({', '.join(extras)})" if extras else ""
        yield package, f"{_version(package)}{wanted_by}"


def _known_to(scheduler: str, packages: Sequence[str]) -> Any:
    """Ask all processes of a cluster for the versions of packages."""
    from distributed import Client

    if scheduler.endswith(".json") and not os.path.exists(scheduler):
        raise FileNotFoundError("there is no such file")
    where: Any = {"scheduler_file" if scheduler.endswith(".json") else "address": scheduler}
    with Client(**where, set_as_default=False, timeout=10) as client:
        return client.get_versions(packages=packages)


def _cluster(scheduler: str) -> Iterator[tuple[str, str]]:
    """Yield versions on the scheduler and workers; processes that differ are named."""
    names = ["dps", "python", *_packages()]
    found = _known_to(scheduler, [name for name in names if name != "python"])
    processes = {"client": found["client"], "scheduler": found["scheduler"], **found["workers"]}
    yield "cluster", f"a scheduler and {len(found['workers'])} workers"
    for name in names:
        said = defaultdict(list)
        for process, known in processes.items():
            said[known["packages"].get(name) or "not installed"].append(process)
        each = (f"{version} ({', '.join(where)})" for version, where in said.items())
        yield name, next(iter(said)) if len(said) == 1 else "; ".join(each)


@click.command()
@click.argument("scheduler", required=False)
def main(scheduler: str | None) -> None:
    """Print versions and the build of dps; with a SCHEDULER those on its workers, too.

    SCHEDULER is an address or the path of a scheduler file.
    """
    with refusals(scheduler):
        for about, said in _cluster(scheduler) if scheduler else _here():
            click.echo(f"{about:<18} {said}")


if __name__ == "__main__":
    main(prog_name="python -m dps")
