"""The base of estimators: scikit-learn's methods, which start fits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Self

from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted, validate_data

from dps._parameters import Configuration
from dps._sklearn import with_callbacks
from dps.cluster.choice import client_of, here
from dps.data.collections.alignment import in_memory
from dps.data.collections.partitions import as_pandas, is_dask, meta_of
from dps.data.collections.parts import one_graph
from dps.estimators.base.habits import refuse_unknown
from dps.estimators.base.trainable import Trainable
from dps.estimators.fit.encoding import select
from dps.estimators.fit.inputs import as_weights, plain
from dps.estimators.predict.predict import (
    EncodedPredictor,
    Finish,
    FittedModel,
    Predictor,
    RawPredictor,
    apply_to,
)
from dps.optimizers.names import get_optimizer

if TYPE_CHECKING:
    from dps._typing import MatrixLike, PathLike, VectorLike
    from dps.training.report import FitReport

#: Parameters of `fit` by name.
_OF_FIT = ("X", "y", "sample_weight", "X_val", "y_val", "sample_weight_val", "resume")
#: Parameters that are configurations.
_CONFIGURED = ("optimizer", "mode", "loss", "learning_rate")


@dataclass(eq=False, repr=False, kw_only=True)
class DistributedEstimator(Trainable):
    """Base of the estimators: inputs, encoders, clusters, predictions and files."""

    def fit(
        self,
        X: MatrixLike,
        y: VectorLike,
        sample_weight: VectorLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: VectorLike | None = None,
        sample_weight_val: VectorLike | None = None,
        resume: bool = False,
        **unknown: object,
    ) -> Self:
        """Train to the stopping rule.

        Parameters
        ----------
        X : array, sparse matrix, dataframe, dask array or dask dataframe of shape (n, n_features)
            Numbers; a dataframe may also have columns of categories, strings and lists, see
            `encoder`. Or a list of Delayed objects or Futures of numbers, one for each partition.
            Blocks of a dask array may be sparse, lengths unknown, partitions empty or unequal.
        y : vector of length n, or of shape (n, n_outputs)
            Several columns are the targets of a regression, or the labels of a classification as 0
            and 1 (also sparse). Any container works: partition i belongs to partition i of `X`,
            with its rows in order. The index is ignored. Local data is cut like `X` if the lengths
            of its partitions are known.
        sample_weight : vector of length n, optional
            Weights of the rows, in any container. They are scaled to a mean of 1 over all rows,
            including held-out ones.
        X_val, y_val, sample_weight_val : like `X`, `y` and `sample_weight`, optional
            Validation data. Its loss is computed after each epoch (`validation_loss` in
            `history_`), and it is not trained on. With `early_stopping` it replaces the held-out
            rows of `X`; without, it decides nothing. It may be local if `X` is Dask's; Dask data
            beside a local `X` is fetched.
        resume : bool, default=False
            If True, training continues from the newest complete checkpoint at the path of
            `checkpoint`, or starts from the beginning if there is none. Workers, replicas and
            shards may differ. Parameters and data must be the same, except `max_iter`, `tol` and
            `n_iter_no_change`.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data is not as it should be; where, and what to do. Or the checkpoint
            is of other parameters or data, or damaged, as are those before it.
        OSError
            Checkpoints cannot be written where they are to go.
        dps.errors.DPSError
            The cluster failed.
        """
        refuse_unknown(f"{type(self).__name__}.fit()", unknown, _OF_FIT)
        self._validate_params()
        start = self._warm() if self.warm_start else None
        classes = None if start is None else getattr(self, "classes_", None)
        return self._run(
            X, y, sample_weight, (X_val, y_val, sample_weight_val), resume=resume,
            start=start, classes=classes,
        )  # fmt: skip

    def save(self, path: PathLike) -> None:
        """Write the estimator to a directory, from which :func:`dps.load` makes it again.

        Arrays are written as safetensors, all else as JSON, without pickle. An earlier save at the
        path is replaced in one step, once the new files are complete. The state of the training is
        written too, so that `partial_fit` continues. Not written are `client`, `server`, `plan_`,
        `fit_report_`, callbacks, attributes that you have set, and your own model or module, which
        is code: :func:`dps.load` asks for it.

        Parameters
        ----------
        path : str or path
            A directory that holds nothing else. With a protocol, such as ``"s3://bucket/model"``,
            any file system of fsspec.

        Raises
        ------
        TypeError
            A parameter is your own code, such as a loss written in Python; the error names it.
        FileExistsError
            The path contains other files.
        """
        from dps.estimators.files.save import save

        save(self, path)

    @with_callbacks
    def _run(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        validation: Sequence[Any] = (None, None, None),
        *,
        resume: bool = False,
        **options: Any,
    ) -> Self:
        """Fit; `options` are the other fields of `Given`."""
        # It imports half of dps, which predictions do not need.
        from dps.estimators.fit.fit import fit
        from dps.estimators.fit.resume import Resumption
        from dps.estimators.fit.survey import Given
        from dps.estimators.fit.validation import ValidationData
        from dps.estimators.served.publish import server_of

        X = self._table(X, fitting=True)
        held = ValidationData.of(self._table(validation[0]), *validation[1:])
        given = Given(X, as_pandas(y), as_weights(sample_weight), held, **options)
        with (
            client_of(self.client) as client,
            server_of(self.server, client) as server,
            closing(Resumption(self, resume, given.start, given.partial)) as resumption,
        ):
            fit(client, self, given, resumption=resumption, server=server)
        return self

    def _table(self, X: Any, fitting: bool = False) -> Any:
        """Convert an argument of a fit, or of another call, to a known container."""
        if type(X).__module__.startswith("torch.utils.data"):
            raise TypeError(
                f"X is a {type(X).__name__}, and batches are cut by dps: give the rows, as arrays, "
                "tensors, dataframes or a list of Delayed objects, and y"
            )
        return as_pandas(X)

    def __sklearn_is_fitted__(self) -> bool:
        """True once an epoch has been closed, or a user has set coefficients."""
        return hasattr(self, "_carry") or hasattr(self, "coef_")

    def _input(self, X: Any) -> Any:
        check_is_fitted(self)
        if self.encoder_ is not None:
            return select(self, self.encoder_, X, reset=False)
        if is_dask(X):
            meta = meta_of(X)
            if meta is not None:
                validate_data(self, X=meta, skip_check_array=True, reset=False)
            return X
        return plain(self, X, reset=False)

    def _apply(self, X: Any, finish: Finish, columns: Any = None) -> Any:
        """Apply a function to the raw outputs for any container."""
        names = getattr(self, "feature_names_in_", None)
        predict: Predictor
        raw = self._raw()
        if self.encoder_ is None:
            predict = RawPredictor(raw, finish, names, getattr(self, "_means", None))
        else:
            if isinstance(raw, FittedModel):
                raw = replace(raw, encoded=True)
            predict = EncodedPredictor(self.encoder_._layout, RawPredictor(raw, finish))
        return apply_to(self._input(self._table(X)), predict, columns, here(self.client))

    def _in_memory(self, y: Any, weight: Any) -> tuple[Any, Any]:
        """Return targets and weights for a local X; local ones need no cluster."""
        y, weight = as_pandas(y), as_pandas(weight)
        if not (is_dask(y) or is_dask(weight)):
            return y, weight
        with client_of(self.client) as client:
            y, weight = in_memory(client, y=y, sample_weight=weight)
            return y, weight

    def _scored(self, metric: str, X: Any, y: Any, weight: Any) -> float:
        """Score predictions by scikit-learn's metric, or lazy ones by sums."""
        X, y, weight = one_graph(as_pandas(X), as_pandas(y), as_weights(weight))
        predicted = self.predict(X)
        if not is_dask(predicted):
            import sklearn.metrics

            y, weight = self._in_memory(y, weight)
            return float(getattr(sklearn.metrics, metric)(y, predicted, sample_weight=weight))
        with client_of(self.client) as client:
            from dps import metrics

            score = getattr(metrics, metric)
            return float(score(y, predicted, sample_weight=weight, client=client))

    def set_params(self, **params: object) -> Self:
        """Set parameters, including nested ones of the optimizer, mode, loss and schedule.

        ``set_params(optimizer__momentum=0.8)`` replaces the optimizer by one with that momentum. It
        may have been a name: ``set_params(optimizer="momentum", optimizer__momentum=0.8)``.
        """
        inner: dict[str, dict[str, Any]] = {}
        for name in list(params):
            outer, nested, rest = name.partition("__")
            if nested and outer in _CONFIGURED and hasattr(self, outer):
                inner.setdefault(outer, {})[rest] = params.pop(name)
            elif (
                nested
                and outer == "encoder"
                and isinstance(params.get(outer, getattr(self, outer, None)), str)
            ):
                raise ValueError(
                    f"encoder='auto' has no parameter {rest!r}: set encoder=FrameEncoder()"
                )
        super().set_params(**params)
        for outer, given in inner.items():
            value = getattr(self, outer)
            if isinstance(value, str) and outer == "loss":
                value = self._loss()
            elif value == "auto" and outer == "optimizer":
                raise ValueError(
                    f"optimizer='auto' has no parameter {min(given)!r}: set the optimizer's name"
                )
            elif isinstance(value, str) and outer == "optimizer":
                value = get_optimizer(value)
            elif isinstance(value, str) and outer == "mode":
                from dps.modes import get_mode

                value = get_mode(value)
            if not isinstance(value, Configuration):
                raise ValueError(f"{outer}={value!r} has no parameter {min(given)!r}")
            setattr(self, outer, value._with(given))
        return self

    # A client holds a connection and an event loop, and a server other users' memory: they are
    # shared and not copied. A pickle has the server's name, by which it is found again.
    def __sklearn_clone__(self) -> Self:
        parameters = {
            name: value if name in ("client", "server") else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        new = type(self)(**parameters)
        if hasattr(self, "_skl_callbacks"):  # also shared, as in scikit-learn's own clone
            new._skl_callbacks = self._skl_callbacks
        if hasattr(self, "_metadata_request"):
            new._metadata_request = deepcopy(self._metadata_request)
        return new

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if not isinstance(state.get("client", ""), str):
            state["client"] = None
        state["server"] = getattr(state.get("server"), "name", state.get("server"))
        return state

    def _repr_html_inner(self) -> str:
        return self._with_report(super()._repr_html_inner())

    def _repr_mimebundle_(self, **options: object) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = self._with_report(bundle["text/html"])
        return bundle

    def _with_report(self, diagram: str) -> str:
        """Return scikit-learn's diagram with the fit's report below it."""
        report: FitReport | None = getattr(self, "fit_report_", None)
        if report is None:
            return diagram
        summary = f"<summary>{escape(report.summary)}</summary>"
        return f"{diagram}<details>{summary}{report._repr_html_()}</details>"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = getattr(self.encoder, "missing", "mean") != "error"
        return tags
