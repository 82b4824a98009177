"""The words of a window: a wait ends by the word that it waits for, and no other word wakes it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conditions import until

from dps._runtime.shared.words import LATE, LINE_BYTES, PORTABLE, READY, STOPPED, Header

N_RANKS, N_WORDS, N_FIELDS, STOP = 20, 4, 3, 0
#: Seconds that no wait takes unless its end is lost.
LONG = 60.0


class Words:
    """Words, and threads that sleep until some of them change."""

    def __init__(self) -> None:
        memory = np.zeros(Header.nbytes(N_RANKS, N_WORDS, N_FIELDS) // 8, np.int64)
        self.header = Header(memory, N_RANKS, N_WORDS, N_FIELDS, STOP)
        self._sleepers = memory[LINE_BYTES // 8 :]
        self._threads: list[threading.Thread] = []
        self.ended: dict[Any, Any] = {}

    def begin(self, name: Any, wait: Callable[[], Any]) -> None:
        """Have a thread wait; it sleeps when this returns."""

        def waits() -> None:
            self.ended[name] = wait()

        before = int(self._sleepers[0])
        self._threads.append(threading.Thread(target=waits))
        self._threads[-1].start()
        until(lambda: self._sleepers[0] > before, "it sleeps")

    def end(self) -> dict[Any, Any]:
        """Endings of each wait."""
        for thread in self._threads:
            thread.join(LONG / 2)
        return self.ended


def test_each_wait_ends_by_its_own_words() -> None:
    words = Words()
    for field in range(N_FIELDS):
        words.begin(("field", field), lambda field=field: words.header.wait(field, 2, LONG))
    for word in range(1, N_WORDS):
        words.begin(("word", word), lambda word=word: words.header.word_wait(word, 1, LONG))
    for rank in np.random.default_rng(0).permutation(N_RANKS):
        for field in range(N_FIELDS):
            assert ("field", field) not in words.ended
            words.header.rank_store(int(rank), field, 2)
    for word in range(1, N_WORDS):
        assert ("word", word) not in words.ended
        words.header.add(word, 1)
        until(lambda word=word: ("word", word) in words.ended, "it ends")
    assert set(words.end().values()) == {READY}
    assert len(words.ended) == N_FIELDS + N_WORDS - 1


@pytest.mark.skipif(PORTABLE or sys.platform != "linux", reason="sleepers look by themselves")
@pytest.mark.parametrize("kind", ["field", "word", "stop"])
def test_a_sleeper_is_woken_by_what_it_waits_for(kind: str) -> None:
    """And not by looking around by itself, which it does every 0.05 s."""
    waits: dict[str, Callable[[Header], int]] = {
        "field": lambda header: header.wait(1, 1, LONG),
        "word": lambda header: header.word_wait(3, 1, LONG),
        "stop": lambda header: header.wait(2, 1, LONG),
    }
    delays = []
    for _ in range(40):
        words = Words()
        header = words.header
        for rank in range(N_RANKS - 1):
            header.rank_store(rank, 1, 1)
        words.begin(kind, lambda header=header: (waits[kind](header), time.perf_counter()))
        began = time.perf_counter()
        if kind == "field":
            header.rank_store(N_RANKS - 1, 1, 1)
        else:
            header.store(3 if kind == "word" else STOP, 1)
        status, ended = words.end()[kind]
        assert status == (STOPPED if kind == "stop" else READY)
        delays.append(ended - began)
    assert np.quantile(delays, 0.25) < 0.005  # by itself a quarter takes 0.0125 s


def test_stopping_ends_every_wait() -> None:
    words = Words()
    for field in range(N_FIELDS):
        words.begin(field, lambda field=field: words.header.wait(field, 1, LONG))
    assert words.header.store_once(STOP, 1)
    assert list(words.end().values()) == [STOPPED] * N_FIELDS
    assert Words().header.wait(0, 1, 0.01) == LATE


@pytest.mark.skipif(PORTABLE or sys.platform != "linux", reason="sleepers look by themselves")
def test_other_words_do_not_wake_a_sleeper() -> None:
    import resource

    words, rings = Words(), 20_000

    def woken(wait: Callable[[], int]) -> int:
        began = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        assert wait() == READY
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - began

    words.begin("field", lambda: woken(lambda: words.header.wait(1, 1, LONG)))
    words.begin("word", lambda: woken(lambda: words.header.word_wait(2, 1, LONG)))
    for value in range(rings):
        words.header.rank_store(4, 0, value)
        words.header.store(3, value)
    for rank in range(N_RANKS):
        words.header.rank_store(rank, 1, 1)
    words.header.store(2, 1)
    # They look around twenty times a second by themselves.
    assert max(words.end().values()) < rings / 50
