"""Types of users' arguments for annotations; nothing is defined at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Literal, Protocol, TypeAlias

    import dask.array as da
    import dask.dataframe as dd
    import numpy as np
    import pandas as pd
    from dask.delayed import Delayed
    from distributed import Client, Future
    from distributed.deploy import Cluster
    from numpy.typing import ArrayLike
    from scipy.sparse import sparray, spmatrix

    from dps.losses import LabelLoss, Loss, NumberLoss
    from dps.modes import Mode, ModeName
    from dps.optimizers import Optimizer, OptimizerName, Schedule
    from dps.scores.validation import RowScore

    #: A client, a cluster, or the address of a scheduler.
    ClientLike: TypeAlias = Client | Cluster | str
    #: Rows: local, of Dask, or a list of partitions.
    MatrixLike: TypeAlias = (
        ArrayLike | sparray | spmatrix | pd.DataFrame | da.Array | dd.DataFrame
        | Sequence[Delayed | Future]
    )  # fmt: skip
    #: One value per row, or several, such as targets.
    VectorLike: TypeAlias = MatrixLike | pd.Series | dd.Series
    Label: TypeAlias = str | float | np.generic | None
    Multioutput: TypeAlias = (
        Literal["raw_values", "uniform_average", "variance_weighted"] | ArrayLike
    )

    class Splitter(Protocol):
        """A splitter of scikit-learn's, or a :class:`dps.model_selection.PartitionKFold`."""

        def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterable[Any]:
            """Yield pairs of training and test rows."""

        def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
            """Return the number of pairs of training and test rows."""

    #: Values of `cv=`.
    Splitting: TypeAlias = int | Splitter | Iterable[tuple[ArrayLike, ArrayLike]]
    PathLike: TypeAlias = str | os.PathLike[str]
    RandomState: TypeAlias = int | np.random.RandomState | None
    Auto: TypeAlias = Literal["auto"]
    Activation: TypeAlias = Literal["relu", "silu", "tanh", "logistic", "identity"]
    ModeLike: TypeAlias = Mode | ModeName
    StepsLike: TypeAlias = Optimizer | OptimizerName
    OptimizerLike: TypeAlias = StepsLike | Literal["auto", "lbfgs"]
    Placing: TypeAlias = Literal["contiguous", "balanced", "round_robin"]
    RateLike: TypeAlias = (
        float | Schedule | Literal["auto", "constant", "cosine", "invscaling", "step"]
    )
    ClassificationLoss: TypeAlias = Loss | LabelLoss
    RegressionLoss: TypeAlias = Loss | NumberLoss
    ScoringLike: TypeAlias = str | RowScore | Callable[..., Any]
    #: Values of a search's `scoring=`, which may have several.
    ScorersLike: TypeAlias = (
        str | Callable[..., Any] | Sequence[str] | Mapping[str, str | Callable[..., Any]]
    )
