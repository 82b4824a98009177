"""No test leaves a thread or a file of dps behind in the test process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from dps.server.memory import SharedFile

# Scripts, which import each other as such; test_benchmarks runs them.
collect_ignore = ["benchmarks"]

# The same examples in every run; whoever wants others passes --hypothesis-profile=default.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Path] = []
    create = SharedFile.create

    def noting(*args: Any) -> SharedFile:
        file = create(*args)
        made.append(file.path)
        return file

    monkeypatch.setattr(SharedFile, "create", noting)
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dps-")]
    assert not [path for path in made if path.exists()]
