"""The shuffle: permutations, keys, and no order more likely than another."""

from collections import Counter

import numpy as np
import pytest

from dps._kernels.order import derived, shuffle


def shuffled(n, key):
    values = np.arange(n)
    shuffle(values, key)
    return values


@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
def test_it_is_a_permutation_that_belongs_to_its_key(n):
    assert sorted(shuffled(n, 5)) == list(range(n))
    assert np.array_equal(shuffled(n, 5), shuffled(n, 5))
    if n > 10:
        assert not np.array_equal(shuffled(n, 5), shuffled(n, 6))


def test_the_numbers_are_splitmix64s():
    # Written again in Python, from the paper.
    def numbers(state):
        while True:
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
            yield z ^ (z >> 31)

    values, source = list(range(100)), numbers(2**63 + 9)
    for i in range(99, 0, -1):
        j = next(source) * (i + 1) >> 64
        values[i], values[j] = values[j], values[i]
    assert list(shuffled(100, 2**63 + 9)) == values


def test_all_orders_are_equally_likely():
    counts = Counter(tuple(shuffled(4, key)) for key in range(24_000))
    assert len(counts) == 24
    expected = 1000
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_squared < 49.7  # of 23 degrees of freedom: once in a thousand


def test_each_pair_of_numbers_has_a_key_of_its_own():
    pairs = [(first, second) for first in range(100) for second in range(0, 10**6, 10**4)]
    assert len({derived(7, *pair) for pair in pairs}) == len(pairs)
    assert derived(7, 1, 2) == derived(7, 1, 2) != derived(8, 1, 2)
