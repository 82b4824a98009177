"""Folds: the assignment of a partition's rows, on the worker that holds it.

A partition is cut once, into one piece per fold or as splits require. A fit that trains on some
folds and is scored on another uses the pieces as they are, without copying rows again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state, indexable

from dps.cluster.choice import here
from dps.data.collections.alignment import partitions_of
from dps.data.collections.partitions import is_dask, is_list
from dps.data.collections.parts import Parts, held, one_graph, persisted, rows_of, take
from dps.data.collections.results import results_of
from dps.data.collections.sealed import sealed
from dps.data.exchange import stacked
from dps.data.feed.batches import FOLDS, order_of
from dps.data.feed.targets import as_targets
from dps.data.survey.labels import kind_of
from dps.model_selection.splits import TEST, TRAIN, RowSplits, asks_for_labels, splits_of

if TYPE_CHECKING:
    from dps._typing import ClientLike, MatrixLike, RandomState, Splitting, VectorLike

#: Bytes of all rows up to which each worker may have a copy for each of its fits.
_SMALL = 1 << 25
#: Parameters of `fit` that have rows of their own.
_OTHER = ("X_val", "y_val", "sample_weight_val")


@dataclass(frozen=True)
class PartitionKFold:
    """Folds of equal size, of rows or of whole partitions.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, 2 or more.
    by : {"rows", "partitions"}, default="rows"
        "rows" deals the rows of each partition out to all folds, in a random order. "partitions"
        uses runs of neighbouring partitions: for data in order of time, or if the rows of a
        partition belong together.
    stratify : bool, default=False
        If True, each fold gets its share of each label. A y of several columns is ignored.
    random_state : int, RandomState or None, default=0
        Seed of the order, which depends on it and on the number of the partition alone. Of None or
        a RandomState one is drawn when the splitter is made, and kept.

    Raises
    ------
    ValueError
        A parameter is none of these.
    """

    n_splits: int = 5
    by: str = "rows"
    stratify: bool = False
    random_state: RandomState = 0

    def __post_init__(self) -> None:
        n, seed = (cast("Any", value) for value in (self.n_splits, self.random_state))
        if not isinstance(n, Integral) or n < 2:
            raise ValueError(f"n_splits must be a whole number of 2 or more, got {n}")
        if not isinstance(seed, Integral):
            seed = int(check_random_state(seed).randint(2**31 - 1))
            object.__setattr__(self, "random_state", seed)
        if self.by not in ("rows", "partitions"):
            raise ValueError(f"by must be 'rows' or 'partitions', got {self.by!r}")

    def get_n_splits(
        self, X: Any = None, y: VectorLike | None = None, groups: VectorLike | None = None
    ) -> int:
        """Number of folds."""
        return self.n_splits

    def split(
        self, X: MatrixLike, y: VectorLike | None = None, groups: VectorLike | None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the numbers of training and test rows, for local data in one piece."""
        X, y = indexable(X, y)
        folds = self._assign(X.shape[0] if hasattr(X, "shape") else len(X), y, 0)
        for fold in range(self.n_splits):
            yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)

    def _assign(self, rows: int, y: Any, number: int) -> NDArray[np.int64]:
        """Return the fold of each row of a partition.

        y: labels, if they matter.
        """
        labels = as_targets(y) if self.stratify else None
        seed = cast("int", self.random_state)
        order = order_of(rows, seed, number, FOLDS, labels)
        folds = np.empty(rows, np.int64)
        # Partitions start with different folds; otherwise small ones would favour the first.
        folds[order] = (np.arange(rows) + number) % self.n_splits
        return folds


class Folds:
    """X, y and other row-wise arguments, cut into pieces that stay where they are.

    cv: a splitter numbers rows over all partitions.
    X: dask array or dataframe, or list of Delayed objects or Futures.
    beside: other arguments of `fit` by name: vectors of length n, or values without rows.
    groups: Dask's or local, for a splitter that keeps the rows of a group together.
    Raises ValueError, TypeError: they are not aligned partition by partition, there are fewer
        partitions than folds, or splits have invalid row numbers.
    """

    def __init__(
        self,
        cv: Splitting | None,
        client: ClientLike | None,
        X: MatrixLike,
        y: VectorLike,
        beside: dict[str, Any],
        groups: VectorLike | None = None,
    ) -> None:
        self._client = client
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if groups is not None and (isinstance(cv, PartitionKFold) or not hasattr(cv, "split")):
            raise ValueError(
                f"groups has no effect with cv={cv!r}: give a splitter that keeps groups together, "
                "such as sklearn.model_selection.GroupKFold"
            )
        of_rows = {
            name: values for name, values in beside.items()
            if values is not None and _has_rows(values) and name.rpartition("__")[2] not in _OTHER
        }  # fmt: skip
        self._constant = {k: v for k, v in beside.items() if k not in of_rows}
        X, y, groups, *others = one_graph(X, y, groups, *of_rows.values())
        of_rows = dict(zip(of_rows, others, strict=True))
        self._names = ["X", "y", *of_rows]
        #: Whether pieces can be concatenated in a task.
        self._joins = not any(map(is_list, (X, y, *of_rows.values()))) and not any(
            map(is_dask, self._constant.values())
        )
        self._like = [_kind_of(values) for values in (X, y, *of_rows.values())]
        aligned = partitions_of(X, y, None, multi_output=True)
        parts = [[part.X for part in aligned], [part.y for part in aligned]]
        for values in of_rows.values():
            parts.append([part.weight for part in partitions_of(X, y, values, multi_output=True)])
        if isinstance(cv, PartitionKFold):
            n = cv.n_splits
            roles = np.full((n, n), TRAIN, np.int8)
            np.fill_diagonal(roles, TEST)
            by: list[Any] = [cv] * len(aligned)
        else:
            lengths = Parts(X).lengths
            lazy = Parts(groups).tasks if is_dask(groups) else []
            by_labels = asks_for_labels(cv)
            if lengths is None or lazy or by_labels:  # keep the computed partitions
                *parts, lazy = held(client, [*parts, lazy])
                lengths = _of_each(client, rows_of, parts[0])
            n = sum(lengths)
            found = _of_each(client, as_targets, lazy) if lazy else [groups]
            labels = _of_each(client, as_targets, parts[1]) if by_labels else [None]
            pairs = splits_of(cv, n, _joined(found, n, "groups"), _joined(labels, n, "y"))
            given = RowSplits.of(pairs, n)
            roles, by = given.roles, [*given.cut(lengths)]
        self._roles = roles
        self._whole = isinstance(cv, PartitionKFold) and cv.by == "partitions"
        #: For each piece its partitions by name, and their rows if these are cut.
        self._pieces = (_dealt if self._whole else _cut_up)(client, parts, by, len(self._roles))

    @property
    def n_splits(self) -> int:
        """Number of pairs of training and test rows."""
        return int(self._roles.shape[1])

    def train(self, split: int) -> tuple[Any, Any, dict[str, Any]]:
        """Return X, y and the rest for training, in the containers that were given."""
        return self._of(np.flatnonzero(self._roles[:, split] == TRAIN))

    def test(self, split: int) -> tuple[Any, Any, dict[str, Any]]:
        """Return the same for scoring."""
        return self._of(np.flatnonzero(self._roles[:, split] == TEST))

    def whole(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return the same for all rows."""
        return self._of(range(len(self._roles)))

    @property
    def is_small(self) -> bool:
        """True if each worker can have a copy of all rows."""
        client: Any = here(self._client)
        if client is None or not self._joins:
            return False
        from distributed import futures_of, wait

        there = futures_of([piece[: len(self._names)] for piece in self._pieces])
        with client.as_current():
            wait(there)
        sizes = client.nbytes([future.key for future in there], summary=False)
        return len(sizes) == len({future.key for future in there}) and sum(sizes.values()) < _SMALL

    def in_tasks(self, function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
        """Call ``function(argument, train, test)`` for each argument and split, in tasks.

        train, test: X, y and the rest in this form, as local data.
        """
        import dask

        join, call = (dask.delayed(sealed(each), pure=False) for each in (_joined_pieces, function))
        search = secrets.token_hex(4)  # names for Dask's dashboard
        sides = [
            [
                join(
                    self._names, self._constant,
                    [self._pieces[n] for n in np.flatnonzero(self._roles[:, split] == role)],
                    dask_key_name=f"dps-rows-{search}-{split}-{role}",
                )
                for role in (TRAIN, TEST)
            ]
            for split in range(self.n_splits)
        ]  # fmt: skip
        tasks = [
            call(each, *of, dask_key_name=f"dps-candidate-{search}-{number}-{split}")
            for number, each in enumerate(arguments)
            for split, of in enumerate(sides)
        ]
        return results_of(tasks, self._client)

    def labels(self) -> np.ndarray | None:
        """Distinct labels of all rows, or rows of labels in columns; None for several types."""
        parts = [part for piece in self._pieces for part in piece[1]]
        found = [each for each in _of_each(self._client, _distinct, parts) if len(each)]
        if len(set(map(kind_of, found))) != 1:  # the fit raises the error
            return None
        return _distinct(np.concatenate(found))

    def check_each_row_once(self) -> None:
        """Raise unless each row is scored on once."""
        if ((self._roles == TEST).sum(axis=1) != 1).any():
            raise ValueError("cross_val_predict predicts each row once: splits leave some out")

    def in_order(self, predicted: Sequence[Any]) -> Any:
        """Return the results for each split's test rows in the order of all rows."""
        import dask

        made: dict[int, list[Any]] = {}
        for split, of_split in enumerate(predicted):
            some = iter([part.X for part in partitions_of(of_split, None, None)])
            for piece in np.flatnonzero(self._roles[:, split] == TEST).tolist():
                made[piece] = list(islice(some, len(self._pieces[piece][0])))
        pieces = [made[piece] for piece in range(len(self._pieces))]
        if self._whole:
            whole = [part for piece in pieces for part in piece]
            return self._kept(Parts(predicted[0]).like(whole))
        join = dask.delayed(sealed(_put_together))
        rows = zip(*(piece[-1] for piece in self._pieces), strict=True)
        parts = zip(*pieces, strict=True)
        whole = [join(list(some), list(of)) for some, of in zip(parts, rows, strict=True)]
        return self._kept(Parts(predicted[0]).like(whole, self._like[0].lengths))

    def _kept(self, made: Any) -> Any:
        """Persist a collection, since its pieces depend on it."""
        if is_list(made):
            return list(persisted(self._client, made))
        return persisted(self._client, [made])[0]

    def _of(self, pieces: Iterable[int]) -> tuple[Any, Any, dict[str, Any]]:
        some = [self._pieces[piece] for piece in pieces]
        made = [
            like.like([part for piece in some for part in piece[at]])
            for at, like in enumerate(self._like)
        ]
        beside = dict(zip(self._names[2:], made[2:], strict=True))
        return made[0], made[1], {**self._constant, **beside}


def _of_each(client: ClientLike | None, function: Any, parts: list[Any]) -> list[Any]:
    """Apply a function to each partition."""
    import dask

    call = dask.delayed(sealed(function))
    return results_of([call(part) for part in parts], client)


def _joined_pieces(
    names: Sequence[str], constant: dict[str, Any], pieces: Sequence[Sequence[Any]]
) -> tuple[Any, Any, dict[str, Any]]:
    """Concatenate X, y and the rest of some pieces."""
    X, y, *others = (
        _below([part for piece in pieces for part in piece[at]]) for at in range(len(names))
    )
    return X, y, {**constant, **dict(zip(names[2:], others, strict=True))}


def _below(parts: list[Any]) -> Any:
    """Concatenate parts; categories are united."""
    if not hasattr(parts[0], "iloc"):
        return stacked(parts)
    from dask.dataframe.dispatch import concat

    return concat(parts, ignore_index=True)


def _distinct(y: Any) -> np.ndarray:
    labels = as_targets(y)
    return np.unique(labels, axis=None if labels.ndim == 1 else 0)


def _joined(parts: list[Any], n_rows: int, name: str) -> np.ndarray | None:
    """Return a local value for each row."""
    if parts[0] is None:
        return None
    values = np.concatenate([as_targets(part) for part in parts])
    if values.shape[:1] != (n_rows,) or (name == "groups" and values.ndim > 1):
        raise ValueError(f"{name} has the shape {values.shape}, and X has {n_rows} rows")
    return values


def _dealt(
    client: ClientLike | None, parts: list[list[Any]], by: Sequence[Any], folds: int
) -> list[Any]:
    """Return runs of partitions as pieces."""
    n = len(by)
    if n < folds:
        raise ValueError(f"X has {n} partitions, which cannot be {folds} folds")
    there = held(client, parts)
    return [
        [of_name[f * n // folds : (f + 1) * n // folds] for of_name in there] for f in range(folds)
    ]


def _cut_up(
    client: ClientLike | None, parts: list[list[Any]], by: Sequence[Any], n_pieces: int
) -> list[Any]:
    """Return the pieces of each partition."""
    import dask

    width = len(parts) + 1
    cuts = [
        dask.delayed(sealed(_cut, assign, n_pieces), nout=n_pieces * width, pure=False)(
            number, *of_all
        )
        for number, (assign, of_all) in enumerate(zip(by, zip(*parts, strict=True), strict=True))
    ]
    flat = persisted(client, [pieces[at] for pieces in cuts for at in range(n_pieces * width)])
    return [
        [list(flat[piece * width + at :: n_pieces * width]) for at in range(width)]
        for piece in range(n_pieces)
    ]


def _kind_of(values: Any) -> Parts:
    """Return the container for such parts; for local data beside Dask's, arrays."""
    if is_dask(values):
        return Parts(values)
    import dask.array as da

    return Parts(da.from_array(np.asarray(values), chunks=-1, name=False))


def _has_rows(values: Any) -> bool:
    return is_list(values) or bool(np.ndim(values))


def _cut(by: Any, n_pieces: int, number: int, *parts: Any) -> list[Any]:
    """Return the pieces of a partition in turn, each with all arguments and its rows."""
    lengths = {rows_of(part) for part in parts}
    if len(lengths) > 1:
        raise ValueError(
            f"X in partition {number} has {rows_of(parts[0])} rows, what goes with it "
            f"{[rows_of(part) for part in parts[1:]]}: they must be cut at the same rows"
        )
    pieces = by._assign(rows_of(parts[0]), parts[1], number)
    which = [np.flatnonzero(pieces == piece) for piece in range(n_pieces)]
    return [piece for rows in which for piece in (*(take(part, rows) for part in parts), rows)]


def _put_together(parts: list[Any], rows: list[NDArray[np.int64]]) -> Any:
    """Concatenate pieces of a partition in the order of its rows."""
    order = np.argsort(np.concatenate(rows))
    if not hasattr(parts[0], "iloc"):
        return np.concatenate(parts)[order]
    import pandas as pd

    return pd.concat(parts).iloc[order]
