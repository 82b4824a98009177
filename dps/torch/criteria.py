"""PyTorch's losses per row: a criterion applied to a module's outputs and targets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: Returns losses from outputs and targets.
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def criterion_of(given: Any, classification: bool) -> Criterion:
    """Return a criterion that gives a loss per row.

    given: a str names a loss of ``torch.nn``. None: `of_labels`, or the mean squared error.
    Raises ValueError: it is none of these.
    """
    if given is None:
        return of_labels if classification else nn.MSELoss(reduction="none")
    if isinstance(given, str):
        named = getattr(nn, given, None)
        if not (isinstance(named, type) and issubclass(named, nn.modules.loss._Loss)):
            raise ValueError(
                "The 'criterion' parameter must be a loss of torch.nn or its name, such as "
                f"'HuberLoss', or a function of outputs and targets. Got {given!r} instead."
            )
        given = named
    if isinstance(given, type):
        given = given()
    if not callable(given):
        raise ValueError(
            "The 'criterion' parameter must be a loss of torch.nn or its name, such as "
            f"'HuberLoss', or a function of outputs and targets. Got {given!r} instead."
        )
    if isinstance(getattr(given, "reduction", None), str):
        given = copy.deepcopy(given)
        given.reduction = "none"
    return given


def of_labels(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the log loss for one output per class, or for a single output with two classes."""
    if target.is_floating_point():
        return nn.functional.binary_cross_entropy_with_logits(output, target, reduction="none")
    return nn.functional.cross_entropy(output, target, reduction="none")


def targets_for(output: torch.Tensor, y: torch.Tensor, classification: bool) -> torch.Tensor:
    """Return targets for a criterion: integer codes of classes if there is one output per class.

    Otherwise they are numbers in the shape of the outputs.
    """
    if classification and output.ndim > 1 and output.shape[1] > 1:
        return y.long()
    if output.numel() != y.numel():
        raise ValueError(
            f"the module's outputs are of the shape {tuple(output.shape)}, and the targets of "
            f"{tuple(y.shape)}: there must be an output for each"
        )
    return y.reshape(output.shape)


def total_of(
    criterion: Criterion,
    output: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor | None,
    classification: bool,
) -> torch.Tensor:
    """Return the weighted sum of the losses of rows.

    If a criterion returns several losses per row, their mean counts, as with ``reduction="mean"``;
    a single number counts for each row.

    Raises ValueError: outputs do not suit targets, or there are weights but no losses per row.
    """
    losses = criterion(output, targets_for(output, y, classification))
    rows = len(y)
    if losses.ndim == 0:
        if weight is not None:
            raise ValueError(
                "the criterion returns one number for a batch, which leaves nothing to weight: "
                "have it return a loss a row, as with reduction='none'"
            )
        return losses * rows
    if len(losses) != rows:
        raise ValueError(
            f"the criterion returns losses of the shape {tuple(losses.shape)} for {rows} rows: "
            "have it return a loss a row"
        )
    if losses.ndim > 1:
        losses = losses.reshape(-1) if losses.numel() == rows else losses.flatten(1).mean(1)
    return losses.sum() if weight is None else torch.dot(losses, weight)
