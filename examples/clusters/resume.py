"""A fit that is killed and resumed
================================

Starts a process that trains and writes a checkpoint in each epoch, kills it, and starts it again.
The second process continues, and ends with the bits of a fit that nothing disturbed::

    python examples/clusters/resume.py
"""

import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import dps

EPOCHS = 40


def network(folder: Path | None = None) -> dps.MLPClassifier:
    """Return a network that writes its checkpoints to a folder."""
    checkpoint = None if folder is None else dps.Checkpoint(folder / "fit", every=0)
    return dps.MLPClassifier(
        alpha=1e-3, max_iter=EPOCHS, early_stopping=False, random_state=0, checkpoint=checkpoint
    )


def train(folder: Path) -> int:
    """Train from the newest checkpoint on, if there is one; return the epochs trained here."""
    model = network(folder).fit(*load_digits(return_X_y=True), resume=True)
    model.save(folder / "model")
    report = model.fit_report_
    return sum(account.rows for account in report.accounts) // report.rows


def main(folder: Path) -> None:
    """Kill the first process, let the second one end, and compare."""
    spawn = multiprocessing.get_context("spawn")
    first = spawn.Process(target=train, args=(folder,))
    first.start()
    while first.is_alive() and not list(folder.glob("fit/*/manifest.json")):
        time.sleep(0.01)
    first.kill()
    first.join()
    print(f"the first process ended with exit code {first.exitcode}")

    with spawn.Pool(1) as second:
        trained = second.apply(train, (folder,))
    print(f"the second one trained {trained} of {EPOCHS} epochs, resumed: {trained < EPOCHS}")
    resumed = dps.load(folder / "model")
    undisturbed = network().fit(*load_digits(return_X_y=True))
    same = all(map(np.array_equal, resumed.coefs_, undisturbed.coefs_))
    print(f"{resumed.n_iter_} epochs, the same bits as without a kill: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))

# %%
# It prints::
#
#     the first process ended with exit code -9
#     the second one trained 27 of 40 epochs, resumed: True
#     40 epochs, the same bits as without a kill: True
