"""Imports go downward only, as docs/architecture.md draws them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "dps"
BELOW = {
    "estimators": {
        "preprocessing",
        "training",
        "cluster",
        "data",
        "modes",
        "models",
        "losses",
        "optimizers",
    },
    "training": {
        "cluster",
        "data",
        "modes",
        "server",
        "models",
        "losses",
        "optimizers",
        "_kernels",
    },
    "preprocessing": {"data", "_kernels"},
    "cluster": {"data", "modes", "monitor", "server", "models", "losses", "optimizers"},
    "monitor": {"server", "_kernels"},
    "data": {"models", "losses", "_kernels"},
    "modes": {"server", "models", "losses", "optimizers", "_kernels"},
    "server": {"optimizers", "_kernels"},
    "models": {"losses", "_kernels"},
    "losses": {"_kernels"},
    "optimizers": {"_kernels"},
}
FOR_ALL = {"errors", "_native", "_parameters", "monitor.advice", "monitor.events", "monitor.words"}
MAY_IMPORT_DASK = ("cluster/dask/", "data/", "server/", "monitor/")
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE]


def imported(path: Path, top_level: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    names = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downward(path: Path) -> None:
    floor = path.relative_to(PACKAGE).parts[0]
    if floor == "_kernels":
        return
    inside = {name.removeprefix("dps.") for name in imported(path) if name.startswith("dps.")}
    rooms = {name.split(".")[0] for name in inside - FOR_ALL}
    assert rooms <= BELOW[floor] | FOR_ALL | {floor}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dask_is_imported_where_it_may_be(path: Path) -> None:
    place = str(path.relative_to(PACKAGE))
    dask = {n for n in imported(path, top_level=True) if n.split(".")[0] in ("dask", "distributed")}
    if dask:
        assert place.startswith(MAY_IMPORT_DASK)
