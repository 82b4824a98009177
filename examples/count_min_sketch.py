"""A count-min sketch
==================

Many workers count words in memory that does not grow (Cormode and Muthukrishnan, 2005). Each word
adds one to a place of each row, chosen by a hash. A count is at least the truth, and at most e /
WIDTH of all words too large, except for one word in exp(DEPTH).
"""

from collections import Counter
from zlib import crc32

import numpy as np
from distributed import Client

import dps

DEPTH, WIDTH = 5, 2000


def places(words):
    """Return the place of each word in each row of the flat tensor."""
    hashed = [[crc32(f"{row} {word}".encode()) % WIDTH for row in range(DEPTH)] for word in words]
    return np.array(hashed) + WIDTH * np.arange(DEPTH)


def text(number):
    """Draw words with the frequencies of a language."""
    return [f"word{rank}" for rank in np.random.default_rng(number).zipf(1.3, 5000) % 50_000]


def count(number):
    """Count a text's words on the server."""
    words = text(number)
    dps.ParameterServer.connect("sketch").add("counts", 1, places(words).ravel())


if __name__ == "__main__":
    sketch = {"counts": np.zeros(DEPTH * WIDTH)}
    with (
        Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client,
        dps.ParameterServer(sketch, name="sketch") as server,
    ):
        client.gather(client.map(count, range(20), pure=False))
        truth = Counter(word for number in range(20) for word in text(number))
        words = list(truth)
        found = server.pull("counts", places(words).ravel()).reshape(-1, DEPTH).min(1)
    excess = found - np.array(list(truth.values()))
    assert excess.min() >= 0
    bound = np.e / WIDTH * truth.total()
    print(f"{truth.total():,} words, {len(words):,} of them different, in {DEPTH * WIDTH:,} counts")
    print(f"within the bound of {bound:.0f}: {(excess <= bound).mean():.2%}")
