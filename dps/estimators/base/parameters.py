"""Docstrings of parameters that estimators share.

``<name>`` stands for the default of the estimator's parameter of that name.
"""

from __future__ import annotations

from collections.abc import Iterable

from dps.losses.names import names_of
from dps.modes import MODES
from dps.optimizers import OPTIMIZERS


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


#: Losses.
_LABEL_LOSS = """
loss : {<labels>} or Loss, default="<loss>"
"""

_NUMBER_LOSS = """
loss : {<numbers>} or Loss, default="<loss>"
    "quantile" is the median; ``dps.losses.Quantile(0.9)`` is another quantile. For "poisson"
    (counts) and "gamma" (amounts) the mean is the exponential of the model's output.
"""

#: Rows, and the end of training.
_ROWS = """
shuffle : bool or "global", default=True
    If True, stochastic steps take rows in a new order in each epoch; each replica mixes the rows on
    its worker. "global" first exchanges all rows between workers, once a fit, which copies the
    data. L-BFGS has no order and ignores it.
random_state : int, RandomState or None, default=None
validation_fraction : float, default=<validation_fraction>
    Share of rows that early stopping holds out, unless `fit` gets `X_val`.
scoring : str, RowScore or scorer of scikit-learn, default="loss"
    The score of the validation rows that early stopping monitors: a name of scikit-learn's
    ("accuracy", "roc_auc", "r2", ...), a scorer of `make_scorer`, or your own function in a
    :class:`dps.metrics.RowScore`. `history_` has it as `validation_score`, and `tol` is in its
    units.
"""

#: Training of a user's model.
_STEPS = """
optimizer : str or Optimizer, default="auto"
    One of "auto", "lbfgs", <optimizers>.
    "lbfgs" passes over all rows, for models without randomness whose tensors are all trained.
    "auto" is "lbfgs" for such a model in NumPy with at most 1,000 parameters, unless a learning
    rate, a batch size, early stopping, ``tol=None`` or `partial_fit` asks for stochastic steps. In
    async it follows steps of Adam. For all other models "auto" is "adam".
learning_rate : float, Schedule, {"constant", "invscaling", "step", "cosine"} or "auto", \
default="auto"
    "auto" is the rate of `optimizer` if it has one, else 0.001 for Adam and AdamW, and the default
    of the other optimizers.
alpha : float, default=0.0
    Strength of the L2 penalty: ``alpha / 2 * |w|**2`` is added to the mean loss of a row, for
    tensors of two or more dimensions, or as the layout says.
max_iter : int, default=100
    Maximal number of epochs.
tol : float or None, default=1e-4
    An epoch that does not lower the monitored loss by more than this counts as bad.
early_stopping : bool or "auto", default=False
    If True, rows are held out, and the fit keeps the epoch with their lowest loss. "auto" is False.
n_iter_no_change : int, default=5
    Number of bad epochs in a row that ends the fit.
warm_start : bool, default=False
    If True, `fit` continues from the fitted parameters.
"""

#: Training of networks and factorization machines.
_PLANNED = """
dropout : float, default=0.15
    Share of the units of each hidden layer that are dropped for a training row.
learning_rate : float, Schedule or str, default="auto"
    A number is a constant rate; names are "cosine", "constant", "invscaling" and "step". "auto" is
    the rate of `optimizer` if it has one, else a cosine over `max_iter` epochs after a short
    warm-up. In `partial_fit` it is constant, and after a `fit` a tenth of that.
early_stopping : bool or "auto", default="auto"
    If True, the fit keeps the epoch with the lowest loss of held-out rows, or of `X_val`. "auto"
    holds rows out if there are 100 or more, and uses `X_val` if it is given.
warm_start : bool, default=False
    If True, `fit` continues from the fitted model.
"""

#: Parameters of linear models.
LINEAR = """
penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
    With L1, L-BFGS ends at exact zeros; stochastic steps leave some coefficients small.
alpha : float, "auto" or "cv", default="auto"
    Strength of the penalty. For L2, ``alpha / 2 * |w|**2`` is added to the mean loss of a row.
    It starts from 1 / (sum of sample weights), or 1 / rows. "auto" multiplies that by a power of
    ten if there are 100 rows or more, and more than a tenth as many coefficients, and if this
    lowers the loss of held-out rows by 0.2% and three standard errors. These rows are `X_val`, or
    a fifth of a sample of at most 2^21 stored values, and two more where one does not decide.
    "cv" always looks, in up to five folds, and wants 1% and two standard errors. `partial_fit` does
    not look: it keeps the power of ten of the last `fit`, and counts the rows of all calls since.
standardize : bool or "auto", default="auto"
    If True, the penalty and the steps of SGD, momentum, Adagrad and Adam treat numbers as scaled to
    a standard deviation of one, as in glmnet and Spark. `coef_` belongs to the features as given.
    "auto" is True, but where `alpha` is looked for it also tries False on dense arrays, for columns
    in the same units (pixels). Numbers are the columns of dense arrays and the numeric columns of
    dataframes; categories and columns of sparse matrices are not scaled. Deviations are computed
    from all rows (from a sample of partitions with more than 2^19 stored values), with
    `sample_weight` and without `class_weight`. `partial_fit` keeps its first deviations.
l1_ratio : float, default=0.15
    Share of L1 in the elastic net.
fit_intercept : bool, default=True
max_iter : int, default=1000
    Maximal number of epochs.
tol : float or None, default=1e-4
    For stochastic steps, an epoch that lowers the loss by less than this share of the loss of the
    best constant counts as bad. (A `scoring`, or a loss in Python, by less than this.) L-BFGS ends
    if a step promises less than a hundredth of `tol`, or if `n_iter_no_change` passes in a row each
    gain less than a tenth. In a regression `tol` is multiplied by the squared derivative of the
    loss at a standard deviation of y, or by the objective if that is less. L1 and losses with a
    kink use stricter bounds.
n_iter_no_change : int, default=5
    Number of bad epochs in a row that ends the fit.
early_stopping : bool or "auto", default=False
    If True, the loss of held-out rows, or of `X_val`, decides when to stop and which epoch is kept.
    "auto" is False.
warm_start : bool, default=False
    If True, `fit` starts from the fitted coefficients.
average : bool or int, default=False
    If True, the parameters are averaged over updates. A number starts after that many rows.
optimizer : str or Optimizer, default="auto"
    One of "auto", "lbfgs", <optimizers>.
    "lbfgs" uses the gradient of all rows in each step, in coordinates in which features vary alike,
    so features need no scaling. "auto" is L-BFGS unless you set `learning_rate`, `batch_size`,
    `average`, `early_stopping` or ``tol=None``, which only stochastic steps have. Then it is scaled
    Adagrad, which needs no scaling either; for other optimizers scale sparse features. In async
    "auto" is scaled Adagrad until it gains little, and then L-BFGS, for which replicas wait. For
    wide sparse rows with few values (text) and a small `alpha` it is Adagrad in every mode. In
    `partial_fit` the accumulators forget half in 128 updates, to follow drift; "scaled_adagrad"
    never forgets, nor does "auto" on sparse rows with 4,096 columns or more.
learning_rate : float, Schedule, {"constant", "invscaling", "step", "cosine"} or "auto", \
default="auto"
    "auto" is the rate of `optimizer` if it has one, else its default.
"""

#: Places and resources.
_PLACES = """
verbose : int, default=0
    1 shows a bar; 2 logs a line for each epoch to the logger "dps".
encoder : FrameEncoder or "auto", default="auto"
    Encodes dataframes. "auto" is ``FrameEncoder()`` if a column is not numeric or a number is
    missing, else none. In linear models it has ``min_frequency="auto"``, and chooses `logarithms`.
    Partitions are encoded on their workers, and predictions find columns by name. `partial_fit` and
    `warm_start` keep the first encoder; categories that it does not know are ignored, or count as
    infrequent.
batch_size : int or "auto", default="auto"
    Rows of one update: of all replicas together, in async of one replica.
mode : {<modes>, "auto"} or Mode, default="sync"
    When a gradient is applied, and which replicas wait. "auto" measures the first steps in sync and
    then chooses; ``fit_report_`` says why.
n_replicas : int or "auto", default="auto"
    "auto" is one for each thread of each worker that holds data, or for each core that this process
    may use, if a step has work for it.
checkpoint : Checkpoint or None, default=None
    Takes checkpoints, for example ``dps.Checkpoint("s3://bucket/fit", every="60s", keep=3)``. After
    a crash ``fit(..., resume=True)`` continues from the newest. Not for `partial_fit` or
    `warm_start`.
client : Client of distributed, cluster, address of a scheduler or None, default=None
    None is the active client, if there is one; but local data of less than four million values is
    trained on in this process. For a cluster or an address, each fit connects a client. Options of
    Dask's configuration under ``dps`` say how the cluster is used (docs/reference/options.md).
server : ParameterServer, str or None, default=None
    A server, or its name. The fit writes the model into its tensors a few times a second, for
    others to read (docs/howto/serving.md), and makes tensors that do not exist. One model for each
    server.
"""

#: Attributes of every fit.
_ATTRIBUTES = """
n_features_in_, feature_names_in_
    As in scikit-learn. For an encoded dataframe they describe the dataframe.
encoder_ : FrameEncoder or None
    The fitted encoder. The coefficients belong to its columns.
n_iter_ : int
    Number of closed epochs.
loss_ : float
    Mean training loss during the last epoch, without the penalty.
best_loss_ : float
    Lowest loss of an epoch: of the validation rows with early stopping, else of the training rows.
history_ : History
    A list with a dict for each epoch: `loss`, `validation_loss`, `rows`, `rows_per_replica`,
    `seconds`, `rows_per_second`, staleness, `clock_distance_max` if replicas count their steps,
    rows dropped and late, and `full_batch`, which is True for a pass over all rows.
    ``history_.to_frame()`` is a dataframe, ``history_.plot()`` draws loss and throughput.
plan_ : Plan
    The rows of each replica, and the workers of shards; of a squared error the rows of each worker.
fit_report_ : FitReport
    A report, as text (``print(est.fit_report_)``) and in notebooks: where the time of each replica
    went, and what to change.
"""

#: Pieces of docstrings by their names.
SHARED = {
    "label_loss": _LABEL_LOSS,
    "number_loss": _NUMBER_LOSS,
    "rows": _ROWS,
    "steps": _STEPS,
    "planned": _PLANNED,
    "places": _PLACES,
    "attributes": _ATTRIBUTES,
    "labels": _quoted(names_of("classification")),
    "numbers": _quoted(names_of("regression")),
    "optimizers": _quoted(OPTIMIZERS),
    "modes": _quoted(MODES),
}
