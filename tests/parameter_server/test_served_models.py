"""Estimators that train into a parameter server, and predictions by their readers."""

from __future__ import annotations

import asyncio
import pickle
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from cases import slow
from distributed import Client
from inside import carry_of
from own_models import Softmax
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import NotFittedError

import dps
from dps.errors import ClusterError, ServerLostError, StalledError
from dps.estimators.served import publish as publishing, read as serving
from dps.losses import LogLoss

X, Y = load_breast_cancer(return_X_y=True)
X = X / X.std(axis=0)


def classifier(**parameters: Any) -> dps.LinearClassifier:
    settings = {"optimizer": "adagrad", "tol": None, "max_iter": 5, "random_state": 0}
    return dps.LinearClassifier(**{**settings, **parameters})


class Each:
    """A callback that calls a function after each closed epoch that it hears of."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def setup(self, estimator: Any, context: Any) -> None: ...

    def teardown(self, estimator: Any, context: Any) -> None: ...

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None: ...

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        return context.task_name == "epoch" and bool(self.call(context.task_id + 1))


def with_callback(model: Any, call: Any) -> Any:
    pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")
    return model.set_callbacks(Each(call))


def watch(name: str, wanted: int) -> list[tuple[int, Any, Any]]:
    """Snapshots of some epochs, as they come."""
    found: list[tuple[int, Any, Any]] = []
    server = dps.ParameterServer.connect(name)
    with dps.ServedModel(name) as served:
        while len(found) < wanted:
            epochs = served.epochs
            if epochs and (not found or epochs > found[-1][0]):
                model = served.model
                found.append((carry_of(model).epochs, model.coef_, model.intercept_))
                server.assign("seen", len(found))
    server.disconnect()
    return found


@pytest.mark.parametrize("n_shards", [3, *slow(1)])
def test_another_process_reads_whole_epochs_while_the_model_learns(
    client: Client, n_shards: int
) -> None:
    with dps.ParameterServer(
        {"seen": 0.0}, name="learning", n_shards=n_shards, client=client
    ) as server:
        watching = client.submit(watch, "learning", 3, pure=False)
        model = classifier(max_iter=10**6, n_replicas=2, client=client, server="learning")
        with_callback(model, lambda epoch: server.pull("seen") == 3).fit(X, Y)
        found = watching.result()
    for epochs, coef, intercept in found:
        again = classifier(max_iter=epochs, n_replicas=2, client=client).fit(X, Y)
        np.testing.assert_array_equal(coef, again.coef_)
        np.testing.assert_array_equal(intercept, again.intercept_)
    assert found[0][0] < found[1][0] < found[2][0] <= model.n_iter_


FRAME = pd.DataFrame(X[:, :3], columns=list("abc")).assign(
    kind=np.where(X[:, 3] > 3, "large", "small")
)
SERVED = {
    "linear": (classifier(), X),
    "by lbfgs": (dps.LinearClassifier(), X),
    "float32": (dps.LinearRegressor(random_state=0), X.astype(np.float32)),
    "several": (classifier(), X),
    "network": (dps.MLPClassifier(max_iter=3, random_state=0), X),
    "machine": (dps.FMClassifier(max_iter=3, random_state=0), X),
    "frame": (dps.MLPRegressor(max_iter=3, random_state=0), FRAME),
    "encoded": (dps.LinearClassifier(fit_intercept=False), FRAME),
    "sparse, with empty columns": (
        classifier(optimizer="auto"),
        sparse.csr_matrix(
            (X[:, 0], (np.arange(len(X)), np.arange(len(X)) % 9 * 100)), (len(X), 1000)
        ),
    ),
}


def compare(name: str, fitted: Any, rows: Any) -> tuple[int, list[Any], str]:
    """Compare predictions of the served and of the fitted model, in another process."""
    with dps.ServedModel(name) as served:
        np.testing.assert_array_equal(served.predict(rows), fitted.predict(rows))
        if fitted._classification:
            np.testing.assert_array_equal(served.predict_proba(rows), fitted.predict_proba(rows))
            np.testing.assert_array_equal(
                served.decision_function(rows), fitted.decision_function(rows)
            )
        return served.epochs, served.model.history_, repr(served.model)


@pytest.mark.parametrize("kind", SERVED)
def test_predictions_elsewhere_are_those_of_the_fitted_estimator(kind: str, client: Client) -> None:
    model, rows = SERVED[kind]
    y = Y if kind != "several" else (X[:, 0] > 3) + (X[:, 1] > 4).astype(int)
    with dps.ParameterServer(name="served", client=client) as server:
        model = clone(model).set_params(client=client, server=server, n_replicas=2).fit(rows, y)
        epochs, history, said = client.submit(compare, "served", model, rows, pure=False).result()
        assert (epochs, repr(history)) == (model.n_iter_, repr(model.history_))
        assert said == repr(clone(model).set_params(client=None, server=None))
        if kind == "linear":
            np.testing.assert_array_equal(server.pull("coef_"), model.coef_)
            np.testing.assert_array_equal(server.pull("intercept_"), model.intercept_)


def test_dask_collections_are_predicted_lazily(client: Client) -> None:
    frame = dd.from_pandas(FRAME, npartitions=3)
    rows = frame.map_partitions(len).compute(scheduler="synchronous")
    y = da.from_array(Y, chunks=(tuple(rows),))
    with dps.ParameterServer(name="lazy", client=client) as server:
        model = classifier(client=client, server="lazy").fit(frame, y)
        served = dps.ServedModel(server)
        assert client.submit(lambda served: served.epochs, served, pure=False).result() == 5
        proba = served.predict_proba(frame)
        assert list(proba.columns) == [0, 1]
        model.partial_fit(frame, y)  # what is lazy has the model of then
        assert not (client.compute(proba).result() == model.predict_proba(FRAME)).to_numpy().all()
        now = client.compute(served.predict_proba(frame)).result()
        np.testing.assert_array_equal(now, model.predict_proba(FRAME))
        assert served.score(FRAME, Y) == model.score(FRAME, Y)


def test_training_goes_on_where_it_was_and_is_seen_to() -> None:
    with dps.ParameterServer(name="on") as server:
        model, alone = classifier(server=server, warm_start=True), classifier(warm_start=True)
        served = dps.ServedModel("on")
        seen = []
        for train in ("fit", "partial_fit", "partial_fit", "fit"):
            getattr(model, train)(X, Y)
            getattr(alone, train)(X, Y)
            np.testing.assert_array_equal(model.coef_, alone.coef_)
            np.testing.assert_array_equal(served.model.coef_, model.coef_)
            seen.append(served.epochs)
        assert seen == [5, 6, 7, 5]
        # A reader of the model can continue it, with the optimizer's state.
        other = served.model
        assert other.server is None
        np.testing.assert_array_equal(other.partial_fit(X, Y).coef_, alone.partial_fit(X, Y).coef_)
        np.testing.assert_array_equal(served.model.coef_, model.coef_)


def fit_in_a_task(name: str) -> Any:
    return classifier(server=name).fit(X, Y).coef_


def test_fits_in_tasks_and_beside_event_loops_are_seen_too(client: Client) -> None:
    async def fit() -> Any:
        address = client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as other:
            model = classifier(max_iter=7, client=other, server="seen")
            with pytest.raises(ClusterError, match=r"asyncio.to_thread"):
                model.fit(X, Y)
            return await asyncio.to_thread(model.fit, X, Y)

    with dps.ParameterServer(name="seen", client=client) as server:
        coef = client.submit(fit_in_a_task, "seen", pure=False).result()
        served = dps.ServedModel(server)
        np.testing.assert_array_equal(served.model.coef_, coef)
        model = asyncio.run(fit())
        np.testing.assert_array_equal(served.model.coef_, model.coef_)
        assert served.epochs == 7


def test_the_tensors_of_another_model_are_refused() -> None:
    with dps.ParameterServer(name="taken") as server:
        classifier(server=server).fit(X, Y)
        before = server.pull("coef_")
        with pytest.raises(ValueError, match=r"'coef_' of the server 'taken'.*\(1, 30\).*\(1, 29"):
            classifier(server=server).fit(X[:, 1:], Y)
        with pytest.raises(ValueError, match=r"float64.* float32 of the shape"):
            classifier(server="taken").fit(X.astype(np.float32), Y)
        np.testing.assert_array_equal(server.pull("coef_"), before)
    with (
        dps.ParameterServer(
            {"coef_": dps.EmbeddingTable(capacity=1, dim=30, dtype="float64")}
        ) as server,
        pytest.raises(ValueError, match="of a server without a name is table of float64"),
    ):
        classifier(server=server).fit(X, Y)


def test_tensors_that_another_fit_creates_meanwhile_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = dps.ParameterServer.create

    def late(self: dps.ParameterServer, tensors: Any, **options: Any) -> Any:
        create(self, tensors, **options)  # by the other one
        return create(self, tensors, **options)

    X, y = np.eye(4), np.arange(4) % 2
    with dps.ParameterServer() as server:
        monkeypatch.setattr(dps.ParameterServer, "create", late)
        model = dps.LinearClassifier(server=server).fit(X, y)
        assert np.array_equal(server.pull("coef_"), model.coef_)


def test_what_is_no_server_is_said() -> None:
    with pytest.raises(LookupError, match="no server with name='nowhere'"):
        classifier(server="nowhere").fit(X, Y)
    with pytest.raises(TypeError, match=r"must be a dps.ParameterServer, the name of one or None"):
        classifier(server=3).fit(X, Y)
    server = dps.ParameterServer()
    server.close()
    with pytest.raises(ServerLostError, match="has been closed"):
        classifier(server=server).fit(X, Y)
    with dps.ParameterServer() as server:
        model = dps.FMClassifier(max_embeddings=200, server=server)
        with pytest.raises(ValueError, match="leave max_embeddings=None"):
            model.fit(FRAME, Y)
        assert server.tensors == {}


def test_a_server_that_is_closed_ends_no_fit(client: Client) -> None:
    alone = classifier(max_iter=30, n_replicas=2, client=client).fit(X, Y)
    closed = threading.Event()

    def close(epoch: int) -> None:
        if not closed.is_set():
            dps.ParameterServer.connect("short", client=client).close()
            closed.set()

    model = with_callback(classifier(max_iter=30, n_replicas=2, client=client), close)
    server = dps.ParameterServer(name="short", client=client)
    with pytest.warns(UserWarning, match="no longer written into the server 'short': .*closed"):
        model.set_params(server=server).fit(X, Y)
    np.testing.assert_array_equal(model.coef_, alone.coef_)
    server.disconnect()


def test_of_two_fits_at_once_one_is_served() -> None:
    with dps.ParameterServer() as server:
        second = classifier(server=server)

        def train(epoch: int) -> None:
            if not hasattr(second, "coef_"):
                for thread in threading.enumerate():  # what the first has begun to write
                    if thread.name == "dps-publisher":
                        thread.join()
                second.fit(X, Y)

        first = classifier(server=server, max_iter=7)
        with pytest.warns(UserWarning, match="another fit trains into it, too"):
            with_callback(first, train).fit(X, Y)
        served = dps.ServedModel(server)
        np.testing.assert_array_equal(served.model.coef_, second.coef_)
        assert not np.array_equal(first.coef_, second.coef_)


@pytest.mark.parametrize("on", ["cluster", "process"])
def test_a_server_that_is_made_again_under_its_name_is_followed(on: str, client: Client) -> None:
    where = {"client": client} if on == "cluster" else {}
    with dps.ParameterServer(name="again", **where) as server:
        first = classifier(server=server, **where).fit(X, Y)
        served = dps.ServedModel("again", **where)
        np.testing.assert_array_equal(served.model.coef_, first.coef_)
    with pytest.raises(ServerLostError):
        served.predict(X)
    with dps.ParameterServer(name="again", **where) as server:
        np.testing.assert_array_equal(served.predict(X), first.predict(X))  # until there is another
        assert served.epochs == 0
        second = classifier(server=server, random_state=1, **where).fit(X, Y)
        np.testing.assert_array_equal(served.model.coef_, second.coef_)
        if on == "cluster":
            found = client.submit(lambda copy: copy.model.coef_, served, pure=False).result()
            np.testing.assert_array_equal(found, second.coef_)
    with pytest.raises(ServerLostError):
        served.predict(X)
    with dps.ParameterServer(name="another", **where) as server:
        named = dps.ServedModel(server)
        classifier(server=server, **where).fit(X, Y)
        assert named.epochs == 5
    with dps.ParameterServer(name="another", **where), pytest.raises(ServerLostError):
        named.predict(X)  # which was given that server, and not its name


def test_a_write_that_nobody_ends_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PATIENCE", 0.01)
    with dps.ParameterServer(name="half") as server:
        served = dps.ServedModel(server)
        with pytest.raises(NotFittedError, match="no epoch of a fit with server='half'"):
            served.predict(X)
        assert served.epochs == 0
        model = classifier(server=server).fit(X, Y)
        assert served.epochs == 5
        server.add(publishing.TRAINING, [[1.0, 0, 0, 0]])
        server.assign("coef_", 7.0)
        np.testing.assert_array_equal(served.predict(X), model.predict(X))  # what was whole
        with pytest.raises(StalledError, match="no fit has completed the model"):
            dps.ServedModel("half").predict(X)
        model.partial_fit(X, Y)
        np.testing.assert_array_equal(dps.ServedModel("half").model.coef_, model.coef_)


@pytest.mark.parametrize("at", ["note", "coef_", "intercept_"])
def test_what_is_written_while_somebody_reads_is_read_whole(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dps.ParameterServer(name="busy") as server:
        model = classifier(server=server).fit(X, Y)
        served = dps.ServedModel("busy")
        left = [3]

        def meddle(function: Any, name: str) -> Any:
            if name == at and left[0]:
                left[0] -= 1
                model.partial_fit(X, Y)
            return function(name)

        pull, note = served.server.pull, served.server.note
        monkeypatch.setattr(served.server, "pull", lambda name: meddle(pull, name))
        monkeypatch.setattr(
            served.server, "note", lambda name: (meddle(note, "note"), note(name))[1]
        )
        found = served.model
        assert left == [0]
        np.testing.assert_array_equal(found.coef_, model.coef_)
        np.testing.assert_array_equal(found.intercept_, model.intercept_)
        assert served.epochs == 8


def test_the_server_is_shared_by_clones_and_a_name_in_pickles(tmp_path: Path) -> None:
    with dps.ParameterServer(name="kept") as server:
        model = classifier(server=server)
        assert clone(model).server is server
        assert pickle.loads(pickle.dumps(model)).server == "kept"
        assert pickle.loads(pickle.dumps(classifier(server="kept"))).server == "kept"
        model.fit(X, Y).save(tmp_path / "model")
        assert dps.load(tmp_path / "model").server is None
    with dps.ParameterServer() as server:
        assert pickle.loads(pickle.dumps(classifier(server=server))).server is None


@dataclass(frozen=True)
class OwnLoss(LogLoss):
    native = None


def test_code_of_ones_own_is_given_again() -> None:
    with dps.ParameterServer(name="own") as server:
        model = dps.ModelClassifier(Softmax, max_iter=5, tol=None, server=server)
        model.fit(X, Y)
        np.testing.assert_array_equal(server.pull("coef"), model.params_["coef"])
        with pytest.raises(TypeError, match="give model again"):
            dps.ServedModel("own").predict(X)
        served = dps.ServedModel("own", model=Softmax)
        np.testing.assert_array_equal(served.predict_proba(X), model.predict_proba(X))
    with dps.ParameterServer(name="loss") as server:
        model = classifier(loss=OwnLoss(), server=server).fit(X, Y)
        np.testing.assert_array_equal(server.pull("coef_"), model.coef_)
        with pytest.raises(TypeError, match=r"tensors of a model alone: .*loss="):
            dps.ServedModel(server).predict(X)


def test_a_saved_server_serves_again(tmp_path: Path) -> None:
    with dps.ParameterServer() as server:
        model = classifier(server=server).fit(X, Y)
        server.save(tmp_path / "server")
    with dps.ParameterServer.load(tmp_path / "server", n_shards=2) as again:
        np.testing.assert_array_equal(dps.ServedModel(again).predict(X), model.predict(X))
