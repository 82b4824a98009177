"""The interface of a model, and the two forms of a batch of rows."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from dps._kernels.coordinates import Coordinates
from dps._kernels.rows import BlockRows, Gradient
from dps.models.layout import Layout


@dataclass(frozen=True, slots=True)
class DenseRows:
    """A batch of rows of a matrix, without a copy.

    Examples
    --------
    >>> import numpy as np
    >>> len(DenseRows(np.zeros((5, 2)), np.array([4, 0])))
    2
    """

    values: Any  # ndarray of shape (rows, n_features), rows are contiguous
    # ndarray of int64 of shape (m,), or None, row i of the batch is ``values[order[i]]``; None
    # takes all rows as they are
    order: Any = None

    def __len__(self) -> int:
        return len(self.values if self.order is None else self.order)

    def matrix(self) -> Any:
        """Return the rows as a read-only array."""
        if self.order is not None:
            return self.values.take(self.order, axis=0)
        values = self.values.view()
        values.flags.writeable = False  # it may be a user's own array
        return values

    def block(self, y: Any, weight: Any) -> BlockRows:
        """Return the form for kernels, with targets and weights of this batch."""
        return BlockRows.dense(self.values, y, weight, self.order is not None)


@dataclass(frozen=True, slots=True)
class CSRRows:
    """A batch of rows of a sparse matrix in CSR form, without a copy.

    Examples
    --------
    >>> import scipy.sparse
    >>> X = scipy.sparse.eye_array(5, format="csr")
    >>> len(CSRRows(X.data, X.indices, X.indptr[2:], 5))
    3
    """

    data: Any  # ndarray of shape (nnz,)
    indices: Any  # ndarray of int32 or int64 of shape (nnz,)
    # ndarray of the same dtype and shape (rows + 1,), absolute offsets into ``data``: a slice of a
    # longer ``indptr`` is a range of its rows
    indptr: Any
    n_features: int
    # ndarray of int64 of shape (m,), or None, row i of the batch is row ``order[i]``; None takes
    # all rows as they are
    order: Any = None

    def __len__(self) -> int:
        return len(self.indptr) - 1 if self.order is None else len(self.order)

    def matrix(self) -> Any:
        """Return the rows as a csr_array."""
        if self.order is None:
            first, last = self.indptr[0], self.indptr[-1]
            data, indices = self.data[first:last], self.indices[first:last]
            indptr = self.indptr - first
        else:
            starts = self.indptr[self.order]
            lengths = self.indptr[self.order + 1] - starts
            indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(self.indptr.dtype)
            at = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
            data, indices = self.data[at], self.indices[at]
        return scipy.sparse.csr_array((data, indices, indptr), (len(indptr) - 1, self.n_features))

    def block(self, y: Any, weight: Any) -> BlockRows:
        """Return the form for kernels, with targets and weights of this batch."""
        picked = self.order is not None
        return BlockRows.csr(
            self.data, self.indices, self.indptr, self.n_features, y, weight, picked
        )


Rows = DenseRows | CSRRows


class WithFeatures(Protocol):
    """A model whose steps may be taken in coordinates of its features."""

    n_features: int

    def standardised(
        self, mean: Any, variance: Any, l2: Any, width: float = 0.0, products: Any = None
    ) -> Coordinates:
        """Return coordinates in which the objective has similar curvature in all directions."""


class Model(Protocol):
    """The interface of a model for a replica.

    A model may keep scratch memory: each replica has its own instance.

    It may have more: ``whole = True`` makes a batch whose rows lie in several blocks one call of
    `loss_gradient`, with rows as methods ``take(X)`` and ``join(parts)`` make them;
    ``computing()`` is a context in which a replica computes; ``evaluate(params, X, y, weight)``
    returns the sum of losses alone.
    """

    @property
    def layout(self) -> Layout:
        """The tensors inside the flat parameters."""

    @property
    def dtype(self) -> Any:
        """The dtype of parameters, values, targets and weights."""

    @property
    def draws(self) -> bool:
        """True if `loss_gradient` draws random numbers in Python. Optional."""

    @property
    def by_blas(self) -> bool:
        """True if the gradient is mostly matrix products. Optional."""

    @property
    def kernel(self) -> Gradient | None:
        """`loss_gradient` as a kernel for compiled loops, or None."""

    def initial(self, rng: Any) -> Any:
        """Return the parameters training starts from.

        Parameters
        ----------
        rng : numpy.random.Generator
            Of the fit's seed.

        Returns
        -------
        ndarray of shape (layout.size,)
        """

    def loss_gradient(
        self,
        params: Any,
        X: Rows,
        y: Any,
        weight: Any,
        out: Any,
        rng: Any = None,
    ) -> float:
        """Add the gradient of a batch's weighted losses to ``out`` and return their sum.

        Parameters
        ----------
        params : ndarray of shape (layout.size,)
        X : DenseRows or CSRRows
            A batch of m rows.
        y : ndarray of shape (m,) or (m, n_outputs)
        weight : ndarray of shape (m,) or None
        out : ndarray of shape (layout.size,)
            A sum, not a mean, is added to it.
        rng : numpy.random.Generator or None
            The batch's own, keyed by the fit's seed, the rank, the epoch and the step; None where
            `draws` is not true.

        Returns
        -------
        float
        """

    def raw(self, params: Any, X: Rows) -> Any:
        """Return the raw outputs of rows.

        Parameters
        ----------
        params : ndarray of shape (layout.size,)
        X : DenseRows or CSRRows

        Returns
        -------
        ndarray of shape (m, n_outputs)
        """
