from typing import Any

def sgd(params: Any, grad: Any, lr: float, l1: float = ..., l2: float = ...) -> bool: ...
def momentum(
    params: Any,
    grad: Any,
    velocity: Any,
    lr: float,
    mu: float,
    nesterov: bool = ...,
    l1: float = ...,
    l2: float = ...,
) -> bool: ...
def adagrad(
    params: Any, grad: Any, accumulator: Any, lr: float, l1: float = ..., l2: float = ...
) -> bool: ...
def adam(
    params: Any,
    grad: Any,
    first: Any,
    second: Any,
    step: int,
    lr: float,
    beta1: float = ...,
    beta2: float = ...,
    epsilon: float = ...,
    l1: float = ...,
    l2: float = ...,
) -> bool: ...
def average(mean: Any, params: Any, count: float) -> None: ...
