"""Predictions of a model on a parameter server that another process trains.

It reads what ``publish.py`` writes, by the protocol documented there.
"""

from __future__ import annotations

import copy
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.exceptions import NotFittedError

from dps.errors import ServerLostError, StalledError
from dps.estimators.files.save import unpacked
from dps.estimators.served.publish import NOTE, row_of
from dps.parameter_server import ParameterServer
from dps.training.state import TrainState

if TYPE_CHECKING:
    from dps._typing import ClientLike, MatrixLike, VectorLike

#: Seconds that a snapshot may take to be written, and between two checks.
_PATIENCE, _PAUSE = 10.0, 0.002


class ServedModel:
    """The newest state of a model that a fit with ``server=`` trains.

    Each call checks for a newer closed epoch, which takes microseconds if the server's memory is
    mapped, and uses the parameters of one epoch, never of two. Any client or task of the cluster
    can make one, even before or after the fit.

    Parameters
    ----------
    server : ParameterServer or str
        A server, or its name. If it is closed and made again under its name, the new one is
        followed from its first closed epoch on.
    client : distributed.Client, optional
        Finds the server, as in `ParameterServer.connect`.
    **given
        Parameters of the estimator that are code, which a server does not hold, such as `model` of
        a :class:`~dps.ModelClassifier`; see :func:`dps.load`.

    Examples
    --------
    >>> import dps
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> with dps.ParameterServer() as server:
    ...     fitted = dps.LinearClassifier(server=server).fit(X, y)
    ...     served = dps.ServedModel(server)
    ...     print(bool((served.predict_proba(X) == fitted.predict_proba(X)).all()))
    True
    """

    def __init__(
        self, server: ParameterServer | str, *, client: ClientLike | None = None, **given: object
    ) -> None:
        self._name = server if isinstance(server, str) else None
        self._client = client
        self.server: ParameterServer = (
            ParameterServer.connect(server, client=client) if isinstance(server, str) else server
        )
        self._given = given
        self._lock = threading.Lock()
        self._row = np.zeros(4)
        self._base: Any = None
        self._model: Any = None

    @property
    def epochs(self) -> int:
        """Number of epochs that the model was trained for; 0 before the first."""
        self._look()
        return int(self._row[2])

    @property
    def model(self) -> Any:
        """A fitted estimator of the trained class, with the current parameters.

        It stays as it is; another call gives a newer one. During a fit its `history_`, `loss_` and
        `n_iter_` are of an early epoch; `partial_fit` goes on from its parameters, by itself.

        Raises
        ------
        NotFittedError
            No epoch has been closed yet.
        StalledError
            A fit ended in the middle of a write, and there is nothing older here.
        TypeError
            The estimator is code of its user's, and is not given.
        """
        self._look()
        if self._model is None:
            raise NotFittedError(
                f"no epoch of a fit with server={self.server.name!r} has been closed yet"
            )
        return copy.copy(self._model)  # the caller may train it

    def predict(self, X: MatrixLike) -> Any:
        """Predict with the current model; lazily for Dask collections.

        Parameters
        ----------
        X : rows, as for the estimator's `predict`
        """
        return self.model.predict(X)

    def predict_proba(self, X: MatrixLike) -> Any:
        """Predict probabilities with the current model.

        Parameters
        ----------
        X : rows, as for the estimator's `predict_proba`
        """
        return self.model.predict_proba(X)

    def decision_function(self, X: MatrixLike) -> Any:
        """Return the raw outputs of the current model.

        Parameters
        ----------
        X : rows, as for the estimator's `decision_function`
        """
        return self.model.decision_function(X)

    def score(self, X: MatrixLike, y: VectorLike, sample_weight: VectorLike | None = None) -> float:
        """Score the current model.

        Parameters
        ----------
        X, y, sample_weight
            Rows, targets and weights, as for the estimator's `score`.
        """
        return self.model.score(X, y, sample_weight)

    def __reduce__(self) -> Any:
        return _again, (type(self), self.server, self._name, self._given)

    def close(self) -> None:
        """Disconnect from a server that was given by name."""
        if self._name is not None:
            self.server.disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _look(self) -> None:
        """Read a newer snapshot, if there is one."""
        with self._lock:
            try:
                self._follow()
            except ServerLostError:
                if self._name is None or not self._found_again():
                    raise
                self._follow()

    def _found_again(self) -> bool:
        """True if there is a new server with the name, which is read from now on."""
        assert self._name is not None
        try:
            found = ParameterServer.connect(self._name, client=self._client)
        except LookupError:
            return False
        self.server.disconnect()
        self.server, self._row = found, np.zeros(4)
        return True

    def _follow(self) -> None:
        try:
            row = row_of(self.server)
        except KeyError:  # no fit has begun
            return
        if row[1] == self._row[1] and row[0] == row[1]:
            return
        deadline = time.monotonic() + _PATIENCE
        while not self._take(row):
            if time.monotonic() > deadline:
                if self._model is not None:
                    return
                raise StalledError(
                    f"no fit has completed the model in the server {self.server.name!r} for "
                    f"{_PATIENCE:g} s: has the fit's process died? The next fit completes it"
                )
            time.sleep(_PAUSE)
            row = row_of(self.server)

    def _take(self, row: Any) -> bool:
        """Read the snapshot of a row; False if it was incomplete."""
        begun, done, epochs, described = row
        if begun != done:
            return False
        if done == 0:
            return True
        base = self._base
        if described != self._row[3]:
            note = self.server.note(NOTE)
            assert note is not None
            if (row_of(self.server) != row).any():
                return False
            base = unpacked(note, f"the server {self.server.name!r}", self._given)
        names = base._tensor_names(base._carry.model)
        tensors = {name: self.server.pull(name) for name in names}
        if (row_of(self.server) != row).any():
            return False
        model, params = base._from_tensors(base._carry.model, tensors)
        made = copy.copy(base)
        vars(made).update(made._attributes(model, params))
        if described != done:  # else it is the fitted estimator, with the optimizer's state
            made._carry = TrainState(params, model, epochs=int(epochs))
        self._base, self._model, self._row = base, made, row
        return True


def _again(kind: type[ServedModel], server: ParameterServer, name: str | None, given: Any) -> Any:
    """Restore a pickled object that has a handle of its own."""
    made = kind(server, **given)
    made._name = name
    return made
