"""Words about parameters that several estimators have, written once and shown by each.

``<name>`` stands for the default of the estimator's parameter of that name.
"""

from __future__ import annotations

#: Rows, and the end of training.
_ROWS = """
shuffle : bool or "global", default=True
    Whether stochastic steps take rows in a fresh order in each epoch: each replica mixes
    what lies on its worker. "global" first gives every row to a worker by chance, once a
    fit, at the price of a copy of the data; L-BFGS, which has no order, does without.
random_state : int, RandomState or None, default=None
validation_fraction : float, default=<validation_fraction>
    Share of rows held out, where early stopping is not given others to look at.
scoring : str, RowScore or scorer of scikit-learn, default="loss"
    What early stopping looks at, and `history_` has as `validation_score`: a score of the rows for
    validation, by scikit-learn's name ("accuracy", "roc_auc", "r2", ...) or as `make_scorer` makes
    it; or a function of one's own in a :class:`dps.metrics.RowScore`.
    `tol` is in its units.
"""

#: Training of a user's model.
_STEPS = """
optimizer : {"auto", "lbfgs", "adam", "adamw", "sgd", "momentum", "adagrad"} or Optimizer, \
default="auto"
    "lbfgs" passes over all rows, for models that draw nothing by chance and train all tensors.
    "auto" is "lbfgs" for such a model in NumPy of at most 1,000 parameters, where a step has not
    been asked for (by a learning rate, batch size, early stopping, ``tol=None``, `partial_fit`);
    in async it follows Adam's steps. Else "adam".
learning_rate : float, Schedule, {"constant", "invscaling", "step", "cosine"} or "auto", \
default="auto"
    "auto" is that of `optimizer`, if it has one, else 0.001 for Adam and AdamW, as published, or
    the default of the others.
alpha : float, default=0.0
    Strength of the L2 penalty of tensors of two dimensions or more, or as the layout says:
    ``alpha / 2 * |w|**2`` is added to the mean loss of a row.
max_iter : int, default=100
    Epochs at the most.
tol : float or None, default=1e-4
    An epoch that does not lower the monitored loss by more than this counts as bad.
early_stopping : bool or "auto", default=False
    Whether rows are held out; then the parameters are those of the epoch in which their loss was
    lowest. "auto" is False.
n_iter_no_change : int, default=5
    Bad epochs in a row that end the fit.
warm_start : bool, default=False
    Whether `fit` goes on from the parameters that are there.
"""

#: Training of networks and factorization machines.
_PLANNED = """
activation : {"relu", "silu", "tanh", "logistic", "identity"}, default="relu"
dropout : float, default=0.15
    Share of the units of each hidden layer that a training row does without.
learning_rate : float, Schedule or str, default="auto"
    A number is a constant rate; names are "cosine", "constant", "invscaling" and "step". "auto" is
    that of `optimizer`, if it has one, else a cosine over `max_iter` epochs after a short warm-up;
    in `partial_fit` constant.
early_stopping : bool or "auto", default="auto"
    Whether rows are held out, unless they are given to `fit` as `X_val`; then the parameters are
    those of the epoch in which their loss was lowest. "auto" holds out where there are 100 rows or
    more, and takes what is given.
warm_start : bool, default=False
    Whether `fit` goes on from the model that is there.
"""

#: Parameters of linear models.
LINEAR = """
penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
    L-BFGS ends with the zeros of L1; stochastic steps leave some of them small.
alpha : float, "auto" or "cv", default="auto"
    Strength of the penalty; of L2 ``alpha / 2 * |w|**2`` is added to the mean loss of a row. "auto"
    is 1 / (sum of sample weights), or 1 / rows. "cv" multiplies it by powers of ten if that lowers
    the loss of held-out rows by 1% and two standard errors. These are `X_val`, or up to five folds
    of a sample of at most 2^21 stored values.
standardize : bool or "auto", default="auto"
    Whether numbers are scaled to a standard deviation of one, as in glmnet and Spark, for the
    penalty and for the steps of SGD, momentum, Adagrad and Adam. `coef_` belongs to the features
    as given. "auto" is True, but ``alpha="cv"`` also tries False on dense arrays, for columns in
    the same units (pixels). Numbers are the columns of dense arrays and the numeric columns of
    dataframes; categories and columns of sparse matrices are not scaled. Deviations take in all
    rows (a sample of partitions with more than 2^19 stored values), with `sample_weight` and
    without `class_weight`; `partial_fit` keeps the deviations of its first call.
l1_ratio : float, default=0.15
    Share of L1 in the elastic net.
fit_intercept : bool, default=True
max_iter : int, default=1000
    Epochs at the most.
tol : float or None, default=1e-4
    An epoch of stochastic steps that does not lower the loss by this share of the loss of the best
    constant counts as bad (a `scoring`, and a loss in Python, by this much). L-BFGS ends when a
    step promises less than a hundredth of it, or when
    `n_iter_no_change` passes in a row each gain less than a tenth; in a regression
    times the squared derivative of the loss at a standard deviation of y, and of the
    objective where that is less. With L1, or where a loss has a kink, it is stricter.
n_iter_no_change : int, default=5
    Bad epochs in a row that end the fit.
early_stopping : bool or "auto", default=False
    Whether the loss of rows that are held out, or given to `fit` as `X_val`, decides when to
    stop, and which epoch is kept. "auto" is False.
warm_start : bool, default=False
    Whether `fit` starts from the coefficients that are there.
average : bool or int, default=False
    Whether the parameters are averaged over updates; a number starts when so many
    rows have been seen.
optimizer : str or Optimizer, default="auto"
    One of "auto", "lbfgs", "sgd", "momentum", "adagrad", "scaled_adagrad", "adam" and "adamw".
    "lbfgs" takes its steps from the gradient of all rows, in coordinates in which
    features vary alike; features need not be scaled. "auto" is L-BFGS, unless something
    was asked for that only stochastic steps have: `learning_rate`, `batch_size`,
    `average`, `early_stopping`, ``tol=None``. Then it is scaled Adagrad, for which
    features need not be scaled, either; for the others scale sparse ones. In async it is scaled
    Adagrad until that gains little, and then L-BFGS, for whose passes replicas wait for
    each other. Where sparse rows say little of each column (text) and `alpha` is small,
    it is Adagrad in every mode. In `partial_fit` its accumulators forget half in 128 updates, so
    that it follows what drifts; "scaled_adagrad" itself never forgets.
learning_rate : float, Schedule, {"constant", "invscaling", "step", "cosine"} or "auto", \
default="auto"
    That of `optimizer` by default, if it has one.
"""

#: Places and resources.
_PLACES = """
verbose : int, default=0
    1 shows a bar, 2 a line an epoch in the log (of the logger "dps").
encoder : FrameEncoder or "auto", default="auto"
    What makes numbers of a dataframe. "auto" is ``FrameEncoder()`` where a column is no number, or
    a number is missing; else none. Partitions are encoded where they lie, and columns are found by
    name in predictions. `partial_fit` and `warm_start` keep the first encoder: what it does not
    know is ignored.
batch_size : int or "auto", default="auto"
    Rows of one update: of all replicas together, in async of one.
mode : {"sync", "async", "allreduce", "hybrid", "auto"} or Mode, default="sync"
    When a gradient is applied, and who waits for whom. "auto" measures the first steps, taken
    in sync, and goes on in the mode that they speak for; ``fit_report_`` says why.
n_replicas : int or "auto", default="auto"
    One a thread of each worker that holds data, where there is work for it.
checkpoint : Checkpoint or None, default=None
    Where checkpoints go, as ``dps.Checkpoint("s3://bucket/fit", every="60s", keep=3)``. After a
    crash ``fit(..., resume=True)`` goes on from the newest; not of `partial_fit` or `warm_start`.
client : Client of distributed, cluster, address of a scheduler or None, default=None
    None: the active client, if there is one. With a cluster or an address a client is connected
    for each fit. Dask's configuration says how it is used: ``dps.n_shards``, how many shards hold
    the parameters (by default at most one a host), ``dps.cache``, where data is kept,
    ``dps.rebalance``, whether rows move, ``dps.timeout``, seconds without progress that are an
    error, and ``dps.max_losses`` and ``dps.on_data_loss``, what follows when workers die
    (docs/reference/options.md).
server : ParameterServer, str or None, default=None
    A server, or its name, into whose tensors the model is written while it learns, some times a
    second after closed epochs, for others to read (docs/howto/serving.md). Tensors that are
    not there are made. One model in each server.
"""

#: Attributes of every fit.
_ATTRIBUTES = """
n_features_in_, feature_names_in_
    As in scikit-learn; of the dataframe, where that is encoded.
encoder_ : FrameEncoder or None
    The fitted encoder, whose columns the coefficients belong to.
n_iter_ : int
    Epochs closed.
loss_ : float
    Mean training loss seen during the last epoch, without penalty.
best_loss_ : float
    The lowest loss of an epoch: of the rows that early stopping looked at, else of those trained
    on.
history_ : History
    A list of a dict an epoch: its number, `loss`, `validation_loss`, `rows`,
    `rows_per_replica` (each sees its rows once), `seconds`, `rows_per_second`, staleness,
    `clock_distance_max` where replicas count their steps, rows dropped and late,
    and `full_batch`: whether it was a pass over all rows, which replicas wait for.
    ``history_.to_frame()`` is a dataframe, ``history_.plot()`` draws loss and throughput.
plan_ : Plan
    Which replica had which rows.
fit_report_ : FitReport
    How the fit went, as text (``print(est.fit_report_)``) and in notebooks: where the time
    of each replica went, and what to change.
"""

#: By the names they have in docstrings.
SHARED = {
    "rows": _ROWS,
    "steps": _STEPS,
    "planned": _PLANNED,
    "places": _PLACES,
    "attributes": _ATTRIBUTES,
}
