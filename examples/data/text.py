"""Spam: text from a Dask bag
==========================

Splits mails into words, hashes each word to a column, and trains a linear model::

    pip install -e ".[examples]" && python examples/data/text.py [MAILS.parquet]

Hashing learns nothing from the words, so no worker needs a vocabulary. A parquet file of your own
has the columns "text" and "spam"; without one the script makes mails up.
"""

import sys
import tempfile
from pathlib import Path

import dask.bag
import numpy as np
import pandas as pd
import scipy.sparse
from distributed import Client, LocalCluster
from sklearn.feature_extraction.text import HashingVectorizer

from dps import LinearClassifier

WORDS = 2**18


def made_up_mails(path: Path, mails: int = 8_000) -> None:
    """Make up mails of random words; spam has some words of its own."""
    rng = np.random.default_rng(0)
    common = [f"word{number}" for number in range(3_000)]
    tempting = [f"offer{number}" for number in range(300)]
    spam = rng.random(mails) < 0.3
    texts = [
        " ".join([*rng.choice(common, 60), *rng.choice(tempting if bad else common, 3)])
        for bad in spam
    ]
    pd.DataFrame({"text": texts, "spam": spam}).to_parquet(path, row_group_size=1_000)


def as_rows(texts: list[str]) -> scipy.sparse.csr_matrix:
    """Turn a partition of texts into CSR, with the same column for a word everywhere."""
    return HashingVectorizer(n_features=WORDS, norm="l2").transform(texts)


def main(path: Path) -> None:
    """Train on four fifths of the mails, test on the rest."""
    mails = pd.read_parquet(path).sample(frac=1, random_state=0)
    test, train = mails[: len(mails) // 5], mails[len(mails) // 5 :]

    # A bag stands for whatever brings texts to workers: files of lines, a crawl, a queue.
    texts = dask.bag.from_sequence(train["text"], npartitions=8)
    X = [part for part in texts.map_partitions(list).to_delayed()]
    X = [dask.delayed(as_rows)(part) for part in X]
    y = [dask.delayed(part) for part in np.array_split(train["spam"].to_numpy(), len(X))]

    model = LinearClassifier(random_state=0).fit(X, y)
    right = model.score(as_rows(test["text"]), test["spam"])
    print(f"{model.n_iter_} epochs with alpha={model.alpha_:.2g}")
    print(f"{right:.3f} of {len(test):,} mails are classified correctly")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "mails.parquet")
        if not file.exists():
            made_up_mails(file)
        main(file)

# %%
# It prints::
#
#     73 epochs with alpha=1.6e-09
#     0.976 of 1,600 mails are classified correctly
