"""Data that another client holds, or held, and a client that is closed while it is used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from configure import configure
from distributed import Client, futures_of, get_client, worker_client

import dps
from dps.errors import ClusterError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3))
Y = (X[:, 0] > 0).astype(int)


def in_memory(client: Client) -> list[Any]:
    """X and y on the workers, by keys that nothing else has."""
    parts = da.from_array(X, (100, 3), name=False), da.from_array(Y, 100, name=False)
    held = client.persist(list(parts))
    client.gather([future for each in held for future in client.futures_of(each)])
    return held


def fitted(X: Any, y: Any, client: Client) -> Any:
    return dps.LinearClassifier(client=client).fit(X, y).coef_


def fitted_in_a_task(X: Any, y: Any) -> Any:
    with worker_client() as client:
        return fitted(X, y, client)


def test_persisted_data_can_be_given_to_a_task_that_trains_on_the_cluster(client: Client) -> None:
    x, y = in_memory(client)
    there = client.submit(fitted_in_a_task, x, y, pure=False).result(60)
    np.testing.assert_array_equal(there, fitted(x, y, client))


def in_a_task(what: str) -> Any:
    """With the client of the worker, whose thread is needed."""
    client = get_client()
    if what == "server":
        with dps.ParameterServer({"w": np.ones(2)}, client=client) as server:
            return server.pull("w").sum()
    model = dps.LinearClassifier(client=client).fit(X, Y)
    if what == "fit":
        return model.score(X, Y)
    parts = da.from_array(X, (100, 3)), da.from_array(Y, 100)
    if what == "score":
        return model.score(*parts)
    return dps.model_selection.cross_val_score(model, *parts, cv=2).mean()


@pytest.mark.parametrize("what", ["fit", "score", "search", "server"])
def test_tasks_that_use_the_cluster_leave_their_threads_to_it(client: Client, what: str) -> None:
    """There are as many of them as threads, as of tasks with `dask.compute`."""
    n = sum(client.nthreads().values())
    found = client.gather([client.submit(in_a_task, what, pure=False) for _ in range(n)])
    assert min(found) > 0.9


def test_a_client_that_another_thread_is_making_is_waited_for(client: Client) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        other.status = "newly-created"
        connected = threading.Timer(0.2, setattr, (other, "status", "running"))
        connected.start()
        assert dps.LinearClassifier(client=other).fit(X, Y).score(X, Y) > 0.9
        connected.join()


def test_partitions_on_several_workers_are_trained_by_several(client: Client) -> None:
    x, y = in_memory(client)
    client.replicate(futures_of([x, y]))
    plan = dps.LinearClassifier(client=client, n_replicas=2).fit(x, y).plan_
    assert set(plan.workers) == set(client.nthreads())


def test_data_of_another_client_is_trained_on_while_that_is_there(client: Client) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        x, y = in_memory(other)
        np.testing.assert_allclose(fitted(x, y, client), fitted(X, Y, client), rtol=1e-6)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, y, client: fitted(x, y, client),
        lambda x, y, client: fitted(x + 1, y + 0, client),
        lambda x, y, client: dps.LinearClassifier(client=client).fit(X, Y).score(x, y),
        lambda x, y, client: dps.metrics.log_loss(y, x[:, 0], client=client),
    ],
    ids=["fit", "fit of what follows", "score", "metric"],
)
def test_data_of_a_closed_client_is_an_error_that_says_so(
    use: Callable[[Any, Any, Client], Any], client: Client
) -> None:
    with Client(client.scheduler.address, set_as_default=False) as other:
        x, y = in_memory(other)
    with pytest.raises(ClusterError, match=r"the client that made it is closed.*make it again"):
        use(x, y, client)


def test_a_client_that_is_closed_during_a_fit_ends_it_with_an_error_that_says_so(
    client: Client,
) -> None:
    pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")
    with Client(client.scheduler.address, set_as_default=False) as other:

        class Closing:
            def setup(self, estimator: Any, context: Any) -> None: ...

            def teardown(self, estimator: Any, context: Any) -> None: ...

            def on_fit_task_begin(self, estimator: Any, context: Any) -> None: ...

            def on_fit_task_end(self, estimator: Any, context: Any) -> None:
                other.close()

        configure(timeout=20)
        model = dps.LinearClassifier(client=other, optimizer="sgd", max_iter=10**6, tol=None)
        with pytest.raises(ClusterError, match="the client is"):
            model.set_callbacks(Closing()).fit(X, Y)
