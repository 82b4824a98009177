"""Some of the faults that faults.py draws; the more of them run by its command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client
from faults import Case, cluster, whole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster(3) as made:
        yield made


#: Kills at points and at moments, and of two at a time.
CASES = (0, 3, 25, 26, 27, 28, 34, 36, 38, 46)


@pytest.mark.parametrize("number", CASES)
def test_what_is_promised_holds_whatever_dies(number: int, client: Client) -> None:
    whole(client, 3, 0)
    assert Case(number).run(client) == []
