"""Estimators in files: the name of the class, parameters and fitted attributes.

Loading runs no code from a file and imports nothing that a file names. Models that users have
written are not saved, and must be given again. `client`, `server`, `plan_` and `fit_report_` are
not saved, because they belong to one cluster and one fit. A server stores the same record as bytes
(``publish.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from dps.estimators.base.declare import ESTIMATORS, find
from dps.estimators.files.checks import checks_of
from dps.estimators.files.user_models import own_kinds
from dps.files.directories import read_directory, write_directory
from dps.files.packed import pack, unpack
from dps.files.records import Kind, RecordReader, RecordWriter
from dps.preprocessing.encoder import FrameEncoder, encoder_kinds
from dps.training.saved import KINDS, kinds_by_name

if TYPE_CHECKING:
    from dps._typing import PathLike
    from dps.estimators.base.trainable import Trainable

#: Attributes that not every fit sets.
_OPTIONAL = {"feature_names_in_", "alpha_", "alpha_path_", "standardize_", "_means"}
#: Key of the reason why a record has no estimator.
_UNSAVED = "unsaved"


def save(estimator: Trainable, path: PathLike) -> None:
    """Write an estimator; see `DistributedEstimator.save`."""
    write_directory(path, *_recorded(estimator))


def packed(estimator: Trainable) -> bytes:
    """Pack an estimator as `save` would write it; raise if it cannot be written."""
    try:
        return pack(*_recorded(estimator))
    except TypeError as error:
        return pack({_UNSAVED: str(error)}, {})


def unpacked(data: bytes, what: str, given: Mapping[str, object]) -> Any:
    """Return the estimator that bytes describe; see `load`.

    Raises TypeError: it could not be written, or was written with code that is not given, or the
    other way round.
    Raises ValueError: it is damaged.
    """
    content, arrays = unpack(data, what)
    if isinstance(content, dict) and _UNSAVED in content:
        raise TypeError(f"{what} holds the tensors of a model alone: {content[_UNSAVED]}")
    return _loaded(content, arrays, given, what)


def _recorded(estimator: Trainable) -> tuple[Any, dict[str, Any]]:
    """Return an estimator as JSON values and arrays."""
    cls = type(estimator)
    if ESTIMATORS.get(cls.__name__) is not cls:
        raise TypeError(
            f"{cls.__name__} cannot be saved: put @dps.estimators.estimator(model=...) "
            f"above the class, as it stands above {sorted(ESTIMATORS)}"
        )
    writer = RecordWriter(_kinds(estimator))
    parameters, given = {}, {}
    for name, value in _parameters(estimator).items():
        if name in cls._code and not (value is None or isinstance(value, str)):
            given[name] = shorten(repr(value), 200)  # for the message that asks for it
            continue
        try:
            parameters[name] = writer(value, f"parameters.{name}")
        except TypeError as error:
            if cls._is_option(name):
                given[name] = shorten(repr(value), 200)
                continue
            raise TypeError(
                f"{cls.__name__} cannot be saved with {name}={value!r}, which is no number, text "
                f"or part of dps ({error}): no code is written to files. Set another {name}, or "
                "keep it with cloudpickle"
            ) from error
    fitted = None
    if hasattr(estimator, "_carry"):
        left = vars(estimator)
        saved = {name: left[name] for name in checks_of(estimator) if name in left}
        try:
            fitted = {name: writer(value, name) for name, value in saved.items()}
        except TypeError as error:
            raise TypeError(f"{cls.__name__} cannot be saved: {error}") from error
    content = {"class": cls.__name__, "parameters": parameters, "fitted": fitted}
    if given:
        content["given"] = given
    return content, writer.arrays


def load(path: PathLike, **given: object) -> Any:
    """Read an estimator or an encoder that was saved.

    Nothing in the files is run. They hold numbers and texts, which are checked. Your own model or
    module is code, and not in the files: pass it again.

    Parameters
    ----------
    path : str or path
        The path that was passed to ``save``.
    **given
        Parameters of the estimator that were code: `model`, or `module` and `criterion`.

    Returns
    -------
    estimator : estimator or FrameEncoder
        With ``client=None`` and ``server=None``, without `plan_` and `fit_report_`. `partial_fit`
        continues like that of the saved estimator, bit for bit.

    Raises
    ------
    FileNotFoundError
        The path does not exist or lacks files.
    TypeError
        It was saved with code that is not passed, or without code that is.
    ValueError
        The files are damaged, have another format version, or hold no estimator; or the passed
        model has other tensors than the saved one.

    Examples
    --------
    >>> import dps
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = dps.LinearClassifier().fit(X, y)
    >>> model.save("memory://iris")
    >>> bool((dps.load("memory://iris").predict(X) == model.predict(X)).all())
    True
    """
    return _loaded(*read_directory(path), given, path)


def _loaded(
    content: object, arrays: Mapping[str, object], given: Mapping[str, object], path: PathLike
) -> Any:
    """Make the estimator of a record, or raise an error that names the fault."""
    wanted = content.get("given", {}) if isinstance(content, dict) else {}
    if isinstance(wanted, dict) and set(wanted) != set(given):
        missing = {name: text for name, text in wanted.items() if name not in given}
        extra = sorted(set(given) - set(wanted))
        if missing:
            shown = ", ".join(f"{name}={text}" for name, text in missing.items())
            raise TypeError(
                f"{path} was saved with {shown}, which is code and not in the files: give "
                f"{' and '.join(missing)} again, as in dps.load(path, {next(iter(missing))}=...)"
            )
        raise TypeError(f"{path} was saved without {extra}: nothing is to be given for that")
    try:
        if isinstance(content, dict) and [*content] == ["encoder"]:
            return _encoder(content["encoder"], arrays)
        return _estimator(content, arrays, given)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be loaded: {error}. "
            "Load it with the dps that saved it, or save it again"
        ) from error


def _kinds(estimator: Trainable) -> list[Kind]:
    """Return all kinds of values in a file of this estimator."""
    kinds, model = [*KINDS, *kinds_by_name(), *encoder_kinds()], estimator._model_type
    if estimator._is_own:
        return [*kinds, *own_kinds(model, estimator._build)]
    if is_dataclass(model) and all(kind.type is not model for kind in kinds):
        kinds.append(Kind.of("model", model))
    return kinds


def _parameters(estimator: Trainable) -> dict[str, Any]:
    """Return parameters without the client and the server, which are connections."""
    given = estimator.get_params(deep=False)
    return {name: value for name, value in given.items() if name not in ("client", "server")}


def _encoder(record: object, arrays: Mapping[str, Any]) -> FrameEncoder:
    read = RecordReader(encoder_kinds(), arrays)
    encoder = read(record, "encoder")
    if not isinstance(encoder, FrameEncoder) or read.left:
        raise ValueError("it has no encoder, or arrays that belong to nothing")
    return encoder


def _estimator(content: object, arrays: Mapping[str, Any], code: Mapping[str, Any]) -> Any:
    fields = {"class", "parameters", "fitted"}
    if not isinstance(content, dict) or set(content) - {"given"} != fields:
        raise ValueError(f"it has no {sorted(fields)} of an estimator")
    cls = find(content["class"])
    if not all(name in cls._code or cls._is_option(name) for name in code):
        raise ValueError(f"a {cls.__name__} has other code than {sorted(code)}")
    estimator = cls(**dict.fromkeys(cls._code))
    read = RecordReader(_kinds(estimator), arrays)
    known = set(_parameters(estimator))
    if isinstance(content["parameters"], dict):
        known |= {name for name in content["parameters"] if cls._is_option(name)}
    given = _dict(content["parameters"], "parameters", known)
    values = {name: read(record, f"parameters.{name}") for name, record in given.items()}
    estimator.set_params(**values, **code)
    if content["fitted"] is not None:
        checks = checks_of(estimator)
        given = _dict(content["fitted"], "fitted", set(checks))
        fitted = {name: read(record, name) for name, record in given.items()}
        missing = set(checks) - set(fitted) - _OPTIONAL
        if missing:
            raise ValueError(f"it lacks {sorted(missing)}")
        for name, value in fitted.items():
            setattr(estimator, name, value)
        estimator._loss()
        for name, check in checks.items():
            if name in fitted:
                check(estimator, fitted[name])
        if "_params" in fitted:
            model = fitted.get("_model", estimator._carry.model)
            vars(estimator).update(estimator._attributes(model, estimator._params))
    if read.left:
        raise ValueError(f"it has arrays that belong to nothing: {sorted(read.left)}")
    return estimator


def _dict(given: object, what: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(given, dict) or not set(given) <= known:
        unknown = sorted(set(given) - known) if isinstance(given, dict) else given
        raise ValueError(f"among its {what} is {unknown!r}, which this dps does not know")
    return given
