"""A wheel, an archive and a conda package agree about dps."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import dps

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def bounds(requirements: list[str]) -> set[tuple[str, str]]:
    """Names and bounds, without extras."""
    parts = (re.fullmatch(r"([\w-]+)(?:\[.*\])? ?(.*)", line) for line in requirements)
    return {(part[1], part[2]) for part in parts if part}


def test_the_conda_package_has_the_same_requirements() -> None:
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text("utf-8"))
    needed = PROJECT["project"]["dependencies"]
    python = "python" + PROJECT["project"]["requires-python"]
    assert bounds(recipe["requirements"]["run"]) == bounds([*needed, python])
    build = {"python", "pip", *PROJECT["build-system"]["requires"]}
    assert bounds(recipe["requirements"]["host"]) == bounds(sorted(build))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert recipe["package"]["version"] == citation["version"] == dps.__version__
