"""The examples of the documentation run, and its links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import dask
import default_tables
import distributed
import draw
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.utils.estimator_checks import check_estimator

import dps

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


#: A block of Python, with a package that it needs, and the block after it that shows the output.
PYTHON = re.compile(
    r"^```python(?: (\w+))?\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)


def run(page: Path, module: ModuleType) -> None:
    """Run the blocks of a page, as a reader would paste them; they print what the page shows."""
    same = doctest.OutputChecker().check_output
    for package, block, shown in PYTHON.findall(page.read_text()):
        if package and not find_spec(package):
            continue
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(block, str(page), "exec"), vars(module))
        if shown:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert same(shown, said.getvalue(), flags), f"{block}\nprinted\n{said.getvalue()}"
        print(said.getvalue())


class Cluster(LocalCluster):
    """Stands for a cluster that a machine of the tests does not have."""

    made: ClassVar[list[Cluster]] = []

    def __init__(self, *hosts: Any, **options: Any) -> None:
        super().__init__(n_workers=1, processes=False, dashboard_address=":0")
        self.made.append(self)

    def scale(self, *sizes: int, **jobs: int) -> None:
        """Have as many workers as before."""

    def adapt(self, **jobs: int) -> None:
        """Have as many workers as before."""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that make clusters elsewhere."""
    ours = ModuleType("dask.distributed")
    known = {name: getattr(distributed, name) for name in distributed.__all__}
    vars(ours).update(known, SSHCluster=Cluster)
    monkeypatch.setitem(sys.modules, ours.__name__, ours)
    for package, name in {
        "coiled": "Cluster", "dask_jobqueue": "SLURMCluster",
        "dask_kubernetes.operator": "KubeCluster",
    }.items():  # fmt: skip
        module = ModuleType(package)
        setattr(module, name, Cluster)
        monkeypatch.setitem(sys.modules, package, module)
    monkeypatch.setitem(sys.modules, "dask_kubernetes", ModuleType("dask_kubernetes"))


#: Checks after the blocks of a page have run: of its names, its output and its folder.
Holds = Callable[[dict[str, Any], str, Path], bool]
PROMISES: dict[str, Holds] = {
    "README.md": lambda names, said, _: (
        names["model"].score(names["X"], names["y"]) > 0.85
        and type(names["plain"]).__name__ == "LogisticRegression"
        and "dask.array" in said
    ),
    "checkpoints.md": lambda names, _, folder: (
        names["model"].n_iter_ == 20 and len([*folder.glob("fits/iris/*/manifest.json")]) > 0
    ),
    "dataframes.md": lambda _, said, __: (
        "origin_JFK" in said and "chunktype=scipy.csr_matrix" in said
    ),
    "extending.md": lambda names, _, __: (
        len(blocks(ROOT / "docs" / "howto" / "extending.md", "python")) == 6
        and recipe_keeps_the_contract(names["BilinearRegressor"])
    ),
    "factorization.md": lambda names, _, __: (
        scores(names, "linear") < 0.6 < 0.8 < min(scores(names, "model"), scores(names, "deep"))
    ),
    "imbalance.md": lambda names, _, __: (
        abs(names["chance"].mean() / names["y"].mean() - 1) < 0.05
        and names["weighted"].predict(names["X"]).sum() > names["y"].sum()
    ),
    "monitoring.md": lambda _, said, folder: (
        len([*folder.glob("models/*/manifest.json")]) > 0 and "replica" in said
    ),
    "parameter_servers.md": lambda _, said, __: "['ranker']" in said,
    "predictions.md": lambda names, _, __: list(names["ddf"].columns) == [*"abcd", "label", "p"],
    "saving.md": lambda _, said, folder: (
        "MinMaxScaler" in said
        and {path.name for path in folder.iterdir()} == {"iris", "iris.onnx", "machine.onnx"}
    ),
    "searches.md": lambda names, _, __: names["search"].best_score_ > 0.9,
    "streams.md": lambda names, _, __: names["model"].score(names["X"], names["y"]) > 0.9,
    "text.md": lambda _, said, __: float(said.split()[0]) > 0.9,
    "tutorial.md": lambda _, said, folder: (
        "origin_EWR" in said and {path.name for path in folder.iterdir()} == {"late-flights"}
    ),
    "validation.md": lambda names, said, __: "validation_loss" in said,
}
#: They train models of several kinds for longer than all others.
SLOW_PAGES = {"extending.md", "factorization.md", "own_models.md"}
WITH_BLOCKS = [page for page in PAGES if "```python" in page.read_text()]


def scores(names: dict[str, Any], model: str) -> float:
    """The score of a page's model on its rows for tests."""
    test = names["test"]
    return float(names[model].score(names["frame"][test], names["liked"][test]))


def recipe_keeps_the_contract(estimator: Any) -> bool:
    """True if an estimator keeps scikit-learn's contract, except at an optimum."""
    by_steps = {
        f"check_sample_weight_equivalence_on_{kind}_data": "steps are stochastic"
        for kind in ("dense", "sparse")
    }
    check_estimator(
        estimator(tol=None, max_iter=60, n_replicas=1),
        expected_failed_checks=by_steps,
        on_skip=None,
    )
    return True


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # skl2onnx's
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW_PAGES else []
        )
        for page in WITH_BLOCKS
    ],
)
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.name == "saving.md":
        pytest.importorskip("skl2onnx")
    if page.name == "monitoring.md":
        pytest.importorskip("sklearn.callback")
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem}")  # dataclasses and pickle look it up
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names, scheduler = vars(module), dask.config.get("scheduler", None)
    try:
        run(page, module)
        holds = PROMISES.get(page.name, lambda *_: True)
        assert holds(names, capsys.readouterr().out, tmp_path)
    finally:
        for value in [*names.values(), *Cluster.made]:
            if isinstance(value, (Client, Cluster)):
                value.close()
        Cluster.made.clear()
        dask.config.set(scheduler=scheduler)  # of clients that a page forgets


def test_promises_are_made_for_pages_that_exist() -> None:
    assert {*PROMISES, *SLOW_PAGES} <= {page.name for page in WITH_BLOCKS}


def test_drawings_come_from_the_script() -> None:
    for name, text in draw.drawn().items():
        assert (draw.HERE / name).read_text() == text, "run python docs/pictures/draw.py"


#: Fewer rows than by default.
ARGUMENTS = {"click_logs": ["4000"]}
#: Their numbers depend on which thread or process comes first.
RACES = {"compare_modes", "read_while_training", "resume"}
FAST_EXAMPLES = {"pipeline", "shared_value"}
EXAMPLES = [
    pytest.param(
        script, id=script.stem, marks=[] if script.stem in FAST_EXAMPLES else [pytest.mark.slow]
    )
    for script in sorted((ROOT / "examples").rglob("*.py"))
    if script.stem != "quickstart"  # README's first command runs it
]
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    """A text with zeros for its numbers, and the numbers."""
    numbers = [float(number.replace(",", "")) for number in NUMBER.findall(text)]
    return NUMBER.sub("0", text).split(), numbers


@pytest.mark.parametrize("script", EXAMPLES)
def test_an_example_prints_what_its_last_lines_show(script: Path, tmp_path: Path) -> None:
    if script.stem == "pytorch_module":
        pytest.importorskip("torch")
    command = [sys.executable, str(script), *ARGUMENTS.get(script.stem, ())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = script.read_text().partition("prints::\n#\n")[2].replace("\n#", "\n").lstrip("#")
    words, numbers = zip(words_and_numbers(shown), words_and_numbers(done.stdout), strict=True)
    assert words[0] == words[1]
    if script.stem not in RACES:
        np.testing.assert_allclose(*numbers, rtol=0.1)


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


def test_the_versions_of_the_page_are_those_of_the_project() -> None:
    text = (ROOT / "docs" / "start" / "install.md").read_text()
    table = text.partition("## Versions")[2].partition("##")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [*project["dependencies"], *project["optional-dependencies"]["torch"]]
    wanted = dict(re.findall(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", "\n".join(lists)))
    said = re.findall(r"^\| ([\w, -]+) \| ([\d.]+) \|", table, re.MULTILINE)
    assert len(said) == 7
    for names, version in said:
        for name in names.split(", "):
            where = project["requires-python"][2:] if name == "CPython" else wanted[name]
            assert where == version, name


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
                assert word.arg in known or "__" in str(word.arg), ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "dps":
            there = node.attr in options or hasattr(dps, node.attr) or node.attr == "torch"
            assert there, ast.unparse(node)
