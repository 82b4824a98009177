"""The suite itself: tests that share a process do not harm each other."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import Any

import pytest
from distributed import Client
from local import SharedCluster

from dps.files import directories


@pytest.mark.parametrize(
    ("owner", "name"),
    [(time, "monotonic"), (os, "replace"), (Client, "gather"), (directories.os, "replace")],
)
def test_a_test_does_not_replace_what_other_threads_see(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = getattr(owner, name)
    with pytest.raises(AssertionError, match=rf"other threads see [\w.]+\.{name}"):
        monkeypatch.setattr(owner, name, None)
    assert getattr(owner, name) is before


def test_names_are_followed_and_the_environment_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.files.directories._replace", None)
    assert directories._replace is None
    with pytest.raises(AssertionError, match=r"other threads see os\.replace"):
        monkeypatch.setattr("dps.files.directories.os.replace", None)
    with pytest.raises(AssertionError, match="start a process"):
        monkeypatch.setenv("HOME", "/")


def test_a_cluster_that_does_not_answer_fails_one_test_and_is_made_anew() -> None:
    with closing(SharedCluster(seconds=0.5)) as shared:
        harmed = shared.client()
        shared.check()
        harmed._send_to_scheduler = lambda message: None
        with pytest.raises(TimeoutError):
            shared.check()
        assert harmed.status == "closed"
        assert shared.client() is not harmed
        shared.check()
