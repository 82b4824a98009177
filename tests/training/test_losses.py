"""Every registered loss: slopes, weights, classes and probabilities."""

import pickle

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from dps.losses import (
    EpsilonInsensitive,
    Gamma,
    Hinge,
    Huber,
    LogLoss,
    ModifiedHuber,
    Poisson,
    SquaredError,
)
from dps.losses.classification import OneVsRest, Softmax
from dps.losses.names import LOSSES, get_loss

ALL = [*(kind() for kind in LOSSES.values()), OneVsRest(Hinge()), OneVsRest(ModifiedHuber())]
ALL += [Huber(1.3), EpsilonInsensitive(0.0)]


def example(loss, n=50):
    rng = np.random.default_rng(0)
    if loss.task == "regression":
        y = rng.normal(size=n)
        return {Poisson: np.floor(np.exp(y)), Gamma: np.exp(y)}.get(type(loss), y), rng.normal(
            size=(n, 1)
        )
    classes = 3 if loss.for_classes(3) == loss else 2
    outputs = loss.n_outputs(classes)
    return loss.targets(rng.integers(0, classes, n).astype(float)), 2 * rng.normal(
        size=(n, outputs)
    )


def total(loss, y, raw, weight=None):
    return loss.evaluate(y, raw, weight, np.empty_like(raw))


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_derivative_is_the_finite_difference(loss):
    y, raw = example(loss)
    weight = np.random.default_rng(1).uniform(0, 2, len(raw))
    out, h = np.empty_like(raw), 1e-6
    loss.evaluate(y, raw, weight, out)
    for i, j in np.ndindex(*raw.shape):
        up, down = raw.copy(), raw.copy()
        up[i, j] += h
        down[i, j] -= h
        slope = (total(loss, y, up, weight) - total(loss, y, down, weight)) / (2 * h)
        assert out[i, j] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_a_weight_is_that_many_rows(loss):
    y, raw = example(loss)
    counts = np.random.default_rng(1).integers(0, 4, len(raw))
    repeated = total(loss, np.repeat(y, counts, axis=0), np.repeat(raw, counts, axis=0))
    assert total(loss, y, raw, counts.astype(float)) == pytest.approx(repeated, rel=1e-12)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_a_loss_is_never_negative_and_travels(loss):
    y, raw = example(loss)
    assert total(loss, y, raw) >= 0
    assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize("loss", [SquaredError(), Huber(), EpsilonInsensitive()], ids=repr)
def test_a_regression_has_several_targets(loss):
    rng = np.random.default_rng(0)
    y, raw = rng.normal(size=(2, 20, 3))
    columns = [total(loss, y[:, j].copy(), raw[:, j : j + 1].copy()) for j in range(3)]
    assert total(loss, y, raw) == pytest.approx(sum(columns), rel=1e-12)


def test_classes_choose_the_loss():
    assert LogLoss().for_classes(2) == LogLoss()
    assert LogLoss().for_classes(3) == Softmax()
    own = type("Own", (LogLoss,), {})()
    assert own.for_classes(2) is own
    assert own.for_classes(3) == OneVsRest(own)  # not a softmax that ignores what it overrides
    assert Hinge().for_classes(2) == Hinge()
    assert Hinge().for_classes(3) == OneVsRest(Hinge())
    assert [LogLoss().n_outputs(c) for c in (2, 3)] == [1, 3]
    assert [Softmax().n_outputs(c) for c in (2, 3)] == [2, 3]
    codes = np.array([0.0, 1.0], np.float32)
    np.testing.assert_array_equal(LogLoss().targets(codes), np.array([-1, 1], np.float32))
    assert LogLoss().targets(codes).dtype == np.float32
    assert Softmax().targets(codes) is codes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [loss for loss in ALL if loss.task == "classification"], ids=repr)
def test_probabilities_are_shares_of_one_and_follow_raw(loss, dtype):
    _, raw = example(loss)
    raw = np.vstack([raw, np.full((1, raw.shape[1]), -500), np.full((1, raw.shape[1]), 500)])
    raw = raw.astype(dtype)
    if not loss.has_probabilities:
        with pytest.raises(AttributeError, match="has no probabilities"):
            loss.probabilities(raw)
        return
    shares = loss.probabilities(raw)
    assert shares.dtype == dtype
    assert shares.shape == (len(raw), max(2, raw.shape[1]))
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    assert shares.min() >= 0


@pytest.mark.parametrize("n_classes", [2, 3])
def test_modified_huber_probabilities_are_those_of_scikit_learn(n_classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 4)), rng.integers(0, n_classes, 200)
    peer = SGDClassifier(loss="modified_huber", random_state=0).fit(X, y)
    raw = peer.decision_function(X).reshape(200, -1)
    raw[:5] = -3
    loss = ModifiedHuber().for_classes(n_classes)
    peer.decision_function = lambda X: raw[:, 0] if n_classes == 2 else raw
    np.testing.assert_allclose(loss.probabilities(raw), peer.predict_proba(X), rtol=1e-12)


def test_losses_are_found_by_name_and_others_are_listed():
    assert get_loss("huber", "regression") == Huber()
    assert get_loss(Huber(2.0), "regression") == Huber(2.0)
    message = r"\['hinge', 'log_loss', 'modified_huber', 'squared_hinge'\]. Got 'softmax' instead"
    with pytest.raises(ValueError, match=message):
        get_loss("softmax", "classification")
    names = "'epsilon_insensitive', 'gamma', 'huber', 'poisson', 'quantile', 'squared_error'"
    message = rf"\[{names}\]. Got 'log_loss' instead"
    with pytest.raises(ValueError, match=message):
        get_loss("log_loss", "regression")
    with pytest.raises(ValueError, match=r"Got Hinge\(\) instead"):
        get_loss(Hinge(), "regression")
    with pytest.raises(ValueError, match=r"The 'epsilon' parameter of Huber .* Got -1 instead"):
        Huber(-1)
