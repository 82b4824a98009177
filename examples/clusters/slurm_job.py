"""A job on a cluster with SLURM
=============================

Trains on workers that are jobs of their own. Submit it again when its time is over: it continues
from its newest checkpoint::

    pip install -e . dask-jobqueue
    sbatch --time=04:00:00 --wrap "python examples/clusters/slurm_job.py FOLDER"

Without SLURM it starts two workers on this machine. FOLDER must be on a file system that all nodes
see.
"""

import os
import shlex
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import dask
import dask.array as da
from distributed import Client, LocalCluster

import dps


def start_cluster() -> AbstractContextManager:
    """Submit jobs of workers, or start workers here."""
    if "SLURM_JOB_ID" not in os.environ:
        return LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    from dask_jobqueue import SLURMCluster

    cluster = SLURMCluster(
        python=shlex.quote(sys.executable),  # jobs start it by a shell
        cores=2,  # of a worker, which is a job
        processes=1,
        memory="2GB",
        walltime="01:00:00",
        local_directory=tempfile.gettempdir(),  # on the node
        worker_extra_args=["--lifetime", "50m", "--lifetime-stagger", "5m"],  # they retire in time
        scheduler_options={"dashboard_address": ":0"},
    )
    cluster.adapt(minimum_jobs=3, maximum_jobs=3)  # another job for each that ends
    dask.config.set({"dps.timeout": "30m"})  # longer than a job waits in the queue
    return cluster


def main(folder: Path) -> None:
    """Train, from the newest checkpoint on if there is one, and save the model."""
    random = da.random.RandomState(0)
    X = random.normal(size=(40_000, 10), chunks=(5_000, 10))
    noise = random.normal(size=len(X), chunks=5_000)
    y = (X[:, 0] * X[:, 1] + noise > 0).astype("int8")
    checkpoint = dps.Checkpoint(folder / "fit", every="60s")
    model = dps.MLPClassifier(max_iter=20, random_state=0, checkpoint=checkpoint)
    model.fit(X, y, resume=True)
    model.save(folder / "model")
    print(f"{model.n_iter_} epochs, accuracy {model.score(X, y):.3f}")


if __name__ == "__main__":
    with start_cluster() as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "fits").resolve())

# %%
# It prints::
#
#     20 epochs, accuracy 0.693
