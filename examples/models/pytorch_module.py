"""A PyTorch module on a Dask cluster
==================================

Trains a convolutional network on images in a Dask array, synchronously on two workers, and puts
the trained module to use without dps::

    pip install -e ".[torch]" && python examples/models/pytorch_module.py
"""

import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from torch import nn

from dps.torch import TorchClassifier


def network(shape: tuple[int, ...], n_classes: int, channels: int = 16) -> nn.Module:
    """Return a network for images of 8 x 8 pixels, each with one channel."""
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[0])),
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(channels * 16, n_classes),
    )


def main() -> None:
    """Train on three quarters of the digits, test on the rest."""
    digits, labels = load_digits(return_X_y=True)
    images = (digits.reshape(-1, 8, 8) / 16).astype("float32")
    test = np.arange(len(images)) % 4 == 0
    X = da.from_array(images[~test], chunks=(300, 8, 8))
    y = da.from_array(labels[~test], chunks=300)

    model = TorchClassifier(network, max_iter=20, tol=None, random_state=0).fit(X, y)
    accuracy = model.score(images[test], labels[test])
    print(f"{len(model.plan_.ranks)} replicas, accuracy {accuracy:.3f}")

    with torch.inference_mode():
        logits = model.module_(torch.from_numpy(images[test][:5]))
    print("the module alone says", logits.argmax(1).tolist(), "of", labels[test][:5].tolist())


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster):
        main()

# %%
# It prints::
#
#     2 replicas, accuracy 0.967
#     the module alone says [0, 4, 8, 2, 6] of [0, 4, 8, 2, 6]
