"""What the documentation shows runs, and what it points at exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str, after: str = "") -> list[str]:
    """The blocks of a page, or of what follows a line of it."""
    text = page.read_text()
    return re.findall(
        rf"^```{language}\n(.*?)^```$", text[text.index(after) :], re.MULTILINE | re.DOTALL
    )


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["model"].score(names["X"], names["y"]) > 0.85
    assert "dask.array" in capsys.readouterr().out


def test_the_examples_of_pipelines_and_predictions_run() -> None:
    names: dict[str, Any] = {}
    for example in blocks(ROOT / "docs" / "data.md", "python", "## Pipelines and search"):
        exec(example, names)
    assert names["search"].best_score_ > 0.9
    assert list(names["ddf"].columns) == [*"abcd", "label", "p"]


def test_every_recipe_for_an_extension_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = blocks(ROOT / "docs" / "extending.md", "python")
    assert len(recipes) == 6
    module = ModuleType("recipes")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "recipes", module)
    for recipe in recipes:
        exec(compile(recipe, "docs/extending.md", "exec"), vars(module))


@pytest.mark.parametrize("name", ["numpy_only.py", "compare_modes.py"])
def test_the_examples_run(name: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3


def test_the_readme_has_the_two_commands_that_ci_runs() -> None:
    commands = blocks(ROOT / "README.md", "sh")[0].splitlines()
    assert len(commands) == 2
    assert "examples/quickstart.py" in commands[0]
    assert "pytest" in commands[1]
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link
