"""How the rows of each partition are dealt out to folds, where it lies.

A partition is cut once, into a piece a fold. Whoever trains on some folds and scores on another
takes pieces as they lie: no row is copied again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import indexable

from dps._kernels.order import shuffle
from dps.data.alignment import partitions_of
from dps.data.batches import key_of
from dps.data.partitions import is_dask_frame, is_list
from dps.data.sealed import itself, sealed
from dps.data.targets import as_targets

__all__ = ["Folds", "KFold"]

#: Keeps its numbers apart from those of training.
_FOLDS = 3 << 32
#: What of `fit` is of rows of its own.
_OTHER = ("X_val", "y_val", "sample_weight_val")


@dataclass(frozen=True)
class KFold:
    """Folds of equal size, of rows or of whole partitions.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, 2 or more.
    by : {"rows", "partitions"}, default="rows"
        "rows" deals the rows of each partition out to all folds, in an order drawn by chance.
        "partitions" takes runs of neighbouring partitions as they are: for data in order of time,
        or whose rows of one partition belong together. Nothing is cut for it.
    stratify : bool, default=False
        Whether rows are dealt out label by label, so that each fold has its share of each. A y of
        several columns is not looked at.
    random_state : int, default=0
        Which order. It depends on this and on the number of the partition alone.

    Raises
    ------
    ValueError
        A parameter is none of these.
    """

    n_splits: int = 5
    by: str = "rows"
    stratify: bool = False
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.n_splits < 2:
            raise ValueError(f"n_splits must be 2 or more, got {self.n_splits}")
        if self.by not in ("rows", "partitions"):
            raise ValueError(f"by must be 'rows' or 'partitions', got {self.by!r}")

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of folds."""
        return self.n_splits

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Numbers of the rows to train on, and of those to score on, of local data in one piece."""
        X, y = indexable(X, y)
        folds = self.assign(X.shape[0] if hasattr(X, "shape") else len(X), y, 0)
        for fold in range(self.n_splits):
            yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)

    def assign(self, rows: int, y: Any, number: int) -> NDArray[np.int64]:
        """The fold of each row of a partition.

        Parameters
        ----------
        rows : int
        y : vector
            Its labels, if they matter.
        number : int
            Of the partition.
        """
        order = np.arange(rows)
        shuffle(order, key_of(self.random_state, 0, number, _FOLDS))
        if self.stratify and (labels := as_targets(y)).ndim == 1:
            _, codes = np.unique(labels, return_inverse=True)
            order = order[np.argsort(codes[order], kind="stable")]
        folds = np.empty(rows, np.int64)
        # Partitions begin with different folds, or small ones would favour the first.
        folds[order] = (np.arange(rows) + number) % self.n_splits
        return folds


class Folds:
    """X, y and what else goes with rows, cut into folds that stay where they lie.

    Parameters
    ----------
    kfold : KFold
    client : distributed.Client or None
    X : dask array or dataframe, or list of Delayed objects or Futures
    y : vector of length n, of Dask; or a local one beside known lengths
    beside : dict
        What else goes to `fit`, by name: vectors of length n, or what is not of rows.

    Raises
    ------
    ValueError, TypeError
        They are not aligned partition by partition, or there are fewer partitions than folds.
    """

    def __init__(self, kfold: KFold, client: Any, X: Any, y: Any, beside: dict[str, Any]) -> None:
        import dask

        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        of_rows = {
            name: values for name, values in beside.items()
            if values is not None and _has_rows(values) and name.rpartition("__")[2] not in _OTHER
        }  # fmt: skip
        self._names = ["X", "y", *of_rows]
        self._like = [X, y, *of_rows.values()]
        self._constant = {k: v for k, v in beside.items() if k not in of_rows}
        aligned = partitions_of(X, y, None, multi_output=True)
        parts = [[part.X for part in aligned], [part.y for part in aligned]]
        for values in of_rows.values():
            parts.append([part.weight for part in partitions_of(X, y, values, multi_output=True)])
        persist = dask.persist if client is None else lambda *tasks: client.persist(list(tasks))
        n, folds = len(aligned), kfold.n_splits
        self.n_folds = folds
        if kfold.by == "partitions":
            if n < folds:
                raise ValueError(f"X has {n} partitions, which cannot be {folds} folds")
            stay = dask.delayed(sealed(itself))
            flat = persist(*(stay(part) for of_name in parts for part in of_name))
            self._pieces = [
                [flat[at * n : (at + 1) * n][f * n // folds : (f + 1) * n // folds]
                 for at in range(len(parts))]
                for f in range(folds)
            ]  # fmt: skip
            return
        cut = dask.delayed(sealed(_cut, kfold), nout=folds * len(parts), pure=False)
        cuts = [cut(number, *of_all) for number, of_all in enumerate(zip(*parts, strict=True))]
        width = len(parts)
        flat = persist(*(pieces[at] for pieces in cuts for at in range(folds * width)))
        self._pieces = [
            [list(flat[fold * width + at :: folds * width]) for at in range(width)]
            for fold in range(folds)
        ]

    def of(self, folds: Collection[int]) -> tuple[Any, Any, dict[str, Any]]:
        """X, y and the rest of some folds, each of the kind that it was given as."""
        made = [
            _collection(like, [piece for fold in folds for piece in self._pieces[fold][at]])
            for at, like in enumerate(self._like)
        ]
        beside = dict(zip(self._names[2:], made[2:], strict=True))
        return made[0], made[1], {**self._constant, **beside}


def _has_rows(values: Any) -> bool:
    return is_list(values) or bool(np.ndim(values))


def _cut(kfold: KFold, number: int, *parts: Any) -> list[Any]:
    """The pieces of a partition, fold after fold, of each fold one of all that was given."""
    lengths = {_rows(part) for part in parts}
    if len(lengths) > 1:
        raise ValueError(
            f"X in partition {number} has {_rows(parts[0])} rows, what goes with it "
            f"{[_rows(part) for part in parts[1:]]}: they must be cut at the same rows"
        )
    folds = kfold.assign(_rows(parts[0]), parts[1], number)
    which = [np.flatnonzero(folds == fold) for fold in range(kfold.n_splits)]
    return [_take(part, rows) for rows in which for part in parts]


def _rows(part: Any) -> int:
    return int(part.shape[0]) if hasattr(part, "shape") else len(part)


def _take(part: Any, rows: NDArray[np.int64]) -> Any:
    if hasattr(part, "iloc"):
        return part.iloc[rows]
    if hasattr(part, "tocsr"):
        part = part.tocsr()
    return part[rows] if hasattr(part, "shape") else np.asarray(part)[rows]


def _collection(like: Any, parts: list[Any]) -> Any:
    """Partitions as a collection of the kind that they are of."""
    if is_list(like):
        return parts
    if is_dask_frame(like):
        import dask.dataframe as dd

        return dd.from_delayed(parts, meta=like._meta, verify_meta=False)
    import dask.array as da

    like = like if hasattr(like, "dtype") and hasattr(like, "shape") else np.asarray(like)
    meta = getattr(like, "_meta", None)
    blocks = [da.from_delayed(p, (np.nan, *like.shape[1:]), like.dtype, meta=meta) for p in parts]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)
