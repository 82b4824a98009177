"""Imports go downward only, as docs/inside/architecture.md draws them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "dps"
BELOW = {
    "torch": {"estimators", "models", "losses"},
    "estimators": {
        "files",
        "metrics",
        "scores",
        "preprocessing",
        "training",
        "cluster",
        "data",
        "modes",
        "models",
        "losses",
        "optimizers",
        "parameter_server",
    },
    "parameter_server": {
        "files",
        "cluster",
        "monitor",
        "transport",
        "server",
        "data",
        "models",
        "optimizers",
        "_runtime",
        "_kernels",
    },
    "training": {
        "files",
        "scores",
        "cluster",
        "data",
        "modes",
        "server",
        "transport",
        "models",
        "losses",
        "optimizers",
        "_runtime",
        "_kernels",
    },
    "model_selection": {"metrics", "cluster", "data", "_kernels"},
    "metrics": {"cluster", "data", "scores"},
    "scores": {"data", "losses"},
    "preprocessing": {"files", "data", "_kernels"},
    "cluster": {"data", "modes", "monitor", "server", "transport", "models", "losses"},
    "monitor": {"server", "transport", "_runtime"},
    "files": set(),
    "data": {"models", "losses", "_kernels"},
    "transport": {"server", "_runtime"},
    "modes": {"server", "optimizers", "_runtime"},
    "server": {"models", "optimizers", "_runtime", "_kernels"},
    "models": {"losses", "_kernels"},
    "losses": {"_kernels"},
    "optimizers": {"_kernels"},
}
COMPILED = {"_kernels", "_runtime"}
FOR_ALL = {
    "errors",
    "_checks",
    "_cores",
    "_native",
    "_typing",  # for annotations
    "_parameters",
    "_sklearn",
    "_warned",
    "monitor.advice",
    "monitor.events",
    "monitor.words",
}
MAY_IMPORT_DASK = (
    "cluster/dask/", "data/", "transport/", "monitor/", "parameter_server/shard/actor.py",
    "parameter_server/client/access.py", "parameter_server/client/dask.py",
)  # fmt: skip
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE]


def imported(path: Path, top_level: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    names = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


def offenders(allowed: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """Forbidden imports, by module."""
    found = {str(path.relative_to(PACKAGE)): allowed(path) for path in MODULES}
    assert len(found) > 150
    return {name: imports for name, imports in found.items() if imports}


def test_imports_go_downward() -> None:
    def upward(path: Path) -> set[str]:
        room = path.relative_to(PACKAGE).parts[0]
        inside = {name.removeprefix("dps.") for name in imported(path) if name.startswith("dps.")}
        others = {name for name in inside if not FOR_ALL & {name, name.rpartition(".")[0]}}
        rooms = {name.split(".")[0] for name in others}
        return set() if room in COMPILED else rooms - BELOW[room] - {room}

    assert offenders(upward) == {}


def test_no_files_import_each_other() -> None:
    """When they are loaded, for annotations, or inside functions."""
    graph = {}
    for path in MODULES:
        name = ".".join(("dps", *path.relative_to(PACKAGE).with_suffix("").parts))
        graph[name.removesuffix(".__init__")] = imported(path)
    order = TopologicalSorter({name: names & graph.keys() for name, names in graph.items()})
    order.prepare()  # raises a CycleError that names them


def test_dask_is_imported_where_it_may_be() -> None:
    def of_dask(path: Path) -> set[str]:
        names = imported(path, top_level=True)
        return {name for name in names if name.split(".")[0] in ("dask", "distributed")}

    importing = offenders(of_dask)
    assert "cluster/dask/fit.py" in importing
    assert [name for name in importing if not name.startswith(MAY_IMPORT_DASK)] == []


def test_numerics_know_no_protocol() -> None:
    for path in sorted((PACKAGE / "_kernels").glob("*.p[yx]*")):
        assert "_runtime" not in path.read_text(), path.name


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.p[yx]*"))
        if path.suffix in (".py", ".pyx", ".pxd") and (lines := path.read_text().count("\n")) > 500
    }
    assert long == {}


#: Those of estimators and their models are still to be cut.
RUNTIME = [
    "_runtime",
    "_kernels",
    "modes",
    "server",
    "parameter_server",
    "transport",
    "cluster",
    "training",
]


def fields_of(path: Path) -> dict[str, int]:
    """Numbers of fields that each class of a file has of its own."""
    text = path.read_text()
    if path.suffix == ".pxd":
        field = r"    cdef (?!.*\().*"
        bodies = re.findall(r"^cdef class (\w+).*:\n((?:(?:    .*)?\n)*)", text, re.MULTILINE)
        return {name: len(re.findall(field, body)) for name, body in bodies}
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            declared = {
                ast.unparse(each.target)
                for each in node.body
                if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each)
            }
            assigned = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and ast.unparse(each.value) == "self"
            }
            found[node.name] = len(declared | assigned)
    return found


def test_classes_have_few_fields() -> None:
    many, seen = {}, 0
    for room in RUNTIME:
        for path in sorted((PACKAGE / room).rglob("*.p[yx]*")):
            if path.suffix in (".py", ".pxd"):
                fields = fields_of(path)
                seen += len(fields)
                many |= {name: n for name, n in fields.items() if n > 20}
    assert seen > 200
    assert many.keys() == {"Window"}  # whose fields are the regions of its memory


#: In docstrings and comments: names of mathematics, of other libraries, and of fields in C.
OTHERS = {"n_r", "r_0", "r_1", "inproc", "ucx", "TimeSeriesSplit", "StratifiedGroupKFold"}


def test_names_in_docstrings_and_comments_exist() -> None:
    """Names in backticks stand in the code, and paths lead to a file."""
    prose = re.compile(r'"""[\s\S]*?"""|#[^\n]*')
    files = [each for kind in ("py", "pyx", "pxd", "pyi") for each in PACKAGE.rglob(f"*.{kind}")]
    words, missing = set(OTHERS), []
    for file in [*files, *PACKAGE.rglob("*.h")]:
        words |= set(re.findall(r"[A-Za-z_]\w*", f"{file} {prose.sub(' ', file.read_text())}"))
    for file in files:
        for text in prose.findall(file.read_text()):
            for name in re.findall(r"(?<![`\w])`([A-Za-z_][\w.]*?)(?:\(\))?`(?!`)", text):
                missing += [(file, name)] * (not words.issuperset(name.split(".")))
            for path in re.findall(r"``((?:[a-z_]+/)+[a-z_]+)(?:\.pyx?)?``", text):
                if path.split("/")[0] in BELOW:
                    found = list(PACKAGE.glob(f"{path}*"))
                    missing += [(file, path)] * (not found)
    assert not missing


def test_the_table_of_names_is_that_of_the_code() -> None:
    page = (PACKAGE.parent / "docs" / "inside" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\w+) \|.*\| `(\w+)` in `(.+)` \|$", page, re.MULTILINE)
    assert len(rows) == 17
    for name, cls, path in rows:
        assert name in cls.lower()
        assert re.search(rf"^class {cls}\b", (PACKAGE / path).read_text(), re.MULTILINE), cls
