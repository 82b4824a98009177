"""A `monkeypatch` that leaves alone what other threads of the process see."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest

_TESTS = Path(__file__).resolve().parents[1]


class OwnNames(pytest.MonkeyPatch):
    """Replaces names of dps and of the tests, never what other threads of the process see.

    Dask's event loop runs in a thread here. A test that replaced ``time.monotonic`` for a moment
    left timers of that loop at a made-up time: messages of the client waited for hours. Give the
    code under test a `clock`, a class of the test's own, or a process.
    """

    def setattr(self, target: Any, name: Any, *value: Any, **options: Any) -> None:  # type: ignore[override]
        owner, attribute = target, name
        if isinstance(target, str):
            place, _, attribute = target.rpartition(".")
            owner = resolve_name(place)
        if isinstance(owner, ModuleType | type):
            name_of = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
            file = Path(getattr(sys.modules[name_of], "__file__", None) or "/")
            ours = name_of.partition(".")[0] == "dps" or file.is_relative_to(_TESTS)
            assert ours, f"other threads see {name_of}.{attribute}"
        super().setattr(target, name, *value, **options)

    def setenv(self, *_: Any, **options: Any) -> None:
        raise AssertionError("all threads see the environment: start a process with another one")

    delenv = setenv
