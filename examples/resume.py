"""A fit that is killed and resumed
================================

Starts a process that trains and writes a checkpoint in each epoch, kills it, and starts it again.
The second process continues, and ends with the bits of a fit that nothing disturbed::

    python examples/resume.py
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


def train(folder: Path) -> None:
    """Train from the newest checkpoint on, or from the beginning if there is none."""
    model = network(folder).fit(*load_digits(return_X_y=True), resume=True)
    model.save(folder / "model")


def main(folder: Path) -> None:
    """Kill the first process, let the second one end, and compare."""
    spawn = multiprocessing.get_context("spawn")
    first = spawn.Process(target=train, args=(folder,))
    first.start()
    while not (written := sorted(folder.glob("fit/*/manifest.json"))) and first.is_alive():
        time.sleep(0.01)
    first.kill()
    first.join()
    print(f"killed with exit code {first.exitcode} after epoch {int(written[-1].parent.name[:6])}")

    second = spawn.Process(target=train, args=(folder,))
    second.start()
    second.join()
    resumed = dps.load(folder / "model")
    undisturbed = network().fit(*load_digits(return_X_y=True))
    same = all(map(np.array_equal, resumed.coefs_, undisturbed.coefs_))
    print(f"{resumed.n_iter_} epochs, the same bits as without a kill: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
