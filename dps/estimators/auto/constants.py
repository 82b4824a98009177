"""Columns that have had one value so far, and may vary in later rows.

Their scale is unknown until they vary. It follows from the first rows in which they do, and
predictions for rows with the old value do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.data.survey.quantiles import Points
from dps.data.survey.rows import DataSummary
from dps.data.survey.spread import centres_far_from_zero
from dps.models.factorization import FactorInputs, FactorizationMachine
from dps.models.linear import LinearModel
from dps.models.network import TINY, Network

if TYPE_CHECKING:
    from dps.training.state import TrainState

#: Distance of a constant column's other knots from its value.
_FAR = 2.0**40


def scaling_of(points: Sequence[Points]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the middle of each column and one over its spread, by quartiles; 0 for constants."""
    quartiles = [each.quantiles([0.25, 0.5, 0.75]) for each in points]
    ranges = [each.values[-1] - each.values[0] for each in points]
    centre = np.array([middle for _, middle, _ in quartiles])
    spread = np.array(
        [
            1 / (high - low) if high - low > TINY else 2 / extent if extent > TINY else 0.0
            for (low, _, high), extent in zip(quartiles, ranges, strict=True)
        ]
    )
    return centre, spread


def knots_of_constant(value: float) -> NDArray[np.float64]:
    """Return three knots for a constant column, two of them far from all rows."""
    far = _FAR * max(1.0, abs(value))
    return np.array([value - far, value, value + far])


def constant_columns(model: Any) -> tuple[int, ...]:
    """Return the columns of a model that have had one value so far."""
    inputs = model.inputs
    if isinstance(model, Network):
        constant = inputs.spread == 0
    else:
        constant = np.array([_is_of_constant(each) for each in inputs.knots], bool)
    if inputs.places is None or not constant.any():
        return ()
    numbers = np.flatnonzero(inputs.places >= 0)
    return tuple(numbers[constant[inputs.places[numbers]]].tolist())


def _is_of_constant(knots: NDArray[np.float64]) -> bool:
    return len(knots) == 3 and np.array_equal(knots, knots_of_constant(knots[1]))


def network_goes_on(start: TrainState, points: Sequence[Points] | None) -> TrainState:
    """Adapt a network's state to columns that were constant and now vary (`points`).

    Such a column is scaled anew and its weights restart from zero, unless nothing else tells hidden
    units apart, which then would never learn.
    """
    model, columns = start.model, constant_columns(start.model)
    if not columns or points is None:
        return start
    centres, spreads = scaling_of(points)
    varying = spreads > 0
    if not varying.any():
        return start
    inputs = model.inputs
    at = inputs.places[list(columns)][varying]
    centre, spread = np.array(inputs.centre), np.array(inputs.spread)
    centre[at], spread[at] = centres[varying], spreads[varying]
    inputs = replace(inputs, centre=centre, spread=spread)

    alone = not (inputs.n_plain or model.inputs.spread.any())

    def change(views: dict[str, Any]) -> None:
        if not alone:
            views["weights_0"][inputs.n_plain + at] = 0

    network = Network(
        inputs, model.sizes[1:-1], model.n_outputs, model.loss, model.activation, model.dropout,
        model.dtype, model.output_shift, model.output_scale,
    )  # fmt: skip
    return _changed(start, network, change)


def machine_goes_on(start: TrainState, points: Sequence[Points] | None) -> TrainState:
    """Adapt a factorization machine's state in the same way, with knots among a column's values.

    Each knot starts with the row of the old value.
    """
    model, columns = start.model, constant_columns(start.model)
    if not columns or points is None:
        return start
    inputs: FactorInputs = model.inputs
    knots, rows = list(inputs.knots), []
    assert inputs.places is not None
    for column, of_column in zip(columns, points, strict=True):
        values = of_column.values
        if not len(values) or not values[-1] - values[0] > TINY:
            continue
        place = inputs.places[column]
        middle = float(of_column.quantiles([0.5])[0])
        knots[place] = _knots(float(values[0]), middle, float(values[-1]), knots[place][1])
        rows.append(int(inputs.first_rows[column]))
    if not rows:
        return start

    def change(views: dict[str, Any]) -> None:
        for row in rows:
            views["table"][row : row + 3] = views["table"][row + 1]

    machine = FactorizationMachine(
        replace(inputs, knots=tuple(knots)), model.n_factors, model.hidden, model.n_outputs,
        model.loss, model.activation, model.dropout, model.dtype, model.output_shift,
        model.output_scale, model.table,
    )  # fmt: skip
    if model.table is not None:  # its rows are created on first use
        return replace(start, model=machine)
    return _changed(start, machine, change)


def _knots(low: float, middle: float, high: float, value: float) -> NDArray[np.float64]:
    """Return three knots for a column's values, including its old value."""
    if value < low < high:
        return np.array([value, low, high])
    if low < high < value:
        return np.array([low, high, value])
    if low < value < high:
        return np.array([low, value, high])
    if not low < middle < high:
        middle = low + (high - low) / 2
    return np.array([low, middle, high])


def linear_goes_on(start: TrainState, summary: DataSummary) -> tuple[TrainState, Any]:
    """Adapt a linear model's state in the same way; return which standardized columns vary now.

    A column that was constant had a scale of one and its value as centre.
    """
    model: LinearModel | None = start.model
    if model is None or model.scale is None or summary.standards is None:
        return start, np.empty(0, np.intp)
    mean, deviation = summary.standards
    varying = np.flatnonzero((model.scale == 1) & (deviation != 1))
    if not len(varying):
        return start, varying
    scale, centre = np.array(model.scale), model.centre
    scale[varying] = deviation[varying]
    if centre is not None:
        centre = np.array(centre)
        centre[varying] = centres_far_from_zero(mean, deviation)[varying]

    def change(views: dict[str, Any]) -> None:  # raw outputs stay the same
        coef = views["coef"][varying]
        if centre is not None:
            views["intercept"] += (centre - model.centre)[varying] @ coef
        views["coef"][varying] = coef * scale[varying, None]

    return _changed(start, model.of_features(centre, scale), change), varying


def _changed(start: TrainState, model: Any, change: Any) -> TrainState:
    """Return a start with a changed model, parameters and mean of parameters."""
    params, state = np.array(start.params), start.state
    change(model.layout.views(params))
    if state is not None and start.optimizer is not None and start.optimizer.reports_a_mean:
        state = np.array(state)
        change(model.layout.views(state[-1]))
    return replace(start, params=params, model=model, state=state)
