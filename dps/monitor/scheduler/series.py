"""Curves of bounded length: old points get coarser as new ones come."""

from __future__ import annotations


class Series:
    """Points with several values each; half of them are dropped when there are too many.

    The first and the last point always stay.

    limit: largest number of points, at least 4.

    Examples
    --------
    >>> series = Series(limit=4)
    >>> for x in range(10):
    ...     series.add(x, 10 * x)
    >>> series.columns()
    ([0, 4, 8, 9], [0, 40, 80, 90])
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._points: list[tuple[float, ...]] = []
        self._last: tuple[float, ...] | None = None
        self._stride = 1
        self._seen = 0

    def __len__(self) -> int:
        return len(self._points) + (self._last is not None)

    def add(self, *values: float) -> None:
        """Add a point; all points have the same number of values."""
        kept = self._seen % self._stride == 0
        self._seen += 1
        self._last = None if kept else values
        if not kept:
            return
        if len(self._points) == self._limit - 1:
            self._points = self._points[::2]
            self._stride *= 2
            if (self._seen - 1) % self._stride:
                self._last = values
                return
        self._points.append(values)

    @property
    def last(self) -> tuple[float, ...] | None:
        """The newest point."""
        return self._last or (self._points[-1] if self._points else None)

    def columns(self) -> tuple[list[float], ...]:
        """The values as lists."""
        points = self._points if self._last is None else [*self._points, self._last]
        return tuple(map(list, zip(*points, strict=True)))
