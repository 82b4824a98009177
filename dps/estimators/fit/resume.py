"""The description of a fit in its checkpoints, and its comparison with another fit.

Parameters and data must be the same; where the fit runs, and with how many replicas, may differ.
What a model learned from the survey (centres, bins) comes from the checkpoint, since another number
of partitions would sample other rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from dps._warned import warn
from dps.estimators.fit.strength import Strength
from dps.estimators.fit.survey import Survey
from dps.files.directories import file_system
from dps.files.records import Kind, RecordWriter
from dps.training.checkpoint import files
from dps.training.checkpoint.files import LoadedCheckpoint
from dps.training.checkpoint.lock import PathLock
from dps.training.checkpoint.options import Checkpoint, CheckpointRun
from dps.training.job import Job
from dps.training.position import Position
from dps.training.saved import KINDS, kinds_by_name
from dps.training.state import TrainState

if TYPE_CHECKING:
    from dps.estimators.base.trainable import Trainable
    from dps.models import Model

#: Parameters that may change on resuming: where the fit runs, its output, and its end.
_FREE = {
    "n_replicas", "client", "verbose", "warm_start",
    "checkpoint", "max_iter", "tol", "n_iter_no_change", "random_state", "encoder",
}  # fmt: skip
_REMEDY = (
    "Set it as it was; or fit with resume=False, which begins anew, and another path of "
    "`checkpoint`, which leaves this one as it is"
)

#: Keys of the description in a checkpoint.
_SUBJECT = {"estimator", "seed", "parameters", "data", "model", "strength"}
#: Largest number of columns whose moments are compared, and the tolerance.
_COLUMNS, _ROUNDING = 256, 1e-6
#: Marks numbers that are compared with a tolerance.
_NUMBERS = "numbers "
#: A fact: in full, and for messages.
Fact = list[str]


class Resumption:
    """The checkpoints of one fit: the one to resume from, if any, and the ones to write.

    start: where training starts otherwise.
    partial: whether it is one epoch of many.
    Raises ValueError: options contradict each other, or the checkpoint has other parameters.
    """

    def __init__(
        self, estimator: Trainable, resume: bool, start: TrainState | None, partial: bool
    ) -> None:
        self._where: Checkpoint | None = estimator.checkpoint
        self._found: LoadedCheckpoint | None = None
        self._lock: PathLock | None = None
        self._random_state = estimator.random_state
        if self._where is None:
            if resume:
                raise ValueError(
                    "resume=True asks for checkpoint=dps.Checkpoint(path), whose path says where "
                    "to go on from"
                )
            return
        if partial:
            raise ValueError(
                "checkpoint is not possible with partial_fit, which trains one epoch: set "
                "checkpoint=None, and save the estimator between calls"
            )
        if start is not None:
            raise ValueError(
                "checkpoint is not possible with warm_start=True, which goes on from the "
                "parameters that are there: set warm_start=False, or checkpoint=None"
            )
        from fsspec.implementations.local import LocalFileSystem

        _, fs, root = file_system(self._where.path)
        self._path = root if isinstance(fs, LocalFileSystem) else str(fs.unstrip_protocol(root))
        self._name = type(estimator).__name__
        self._parameters = _parameters(estimator)
        self._lock = PathLock(self._path)
        try:
            self._look(resume)
        except BaseException:
            self.close()
            raise

    def _look(self, resume: bool) -> None:
        """Read the checkpoints at the path."""
        if resume:
            self._found = files.newest(self._path)
            self._check_parameters()
        elif (left := files.unfinished(self._path)) is not None:
            warn(
                f"{left} is a checkpoint of a fit that has not come to its end. This fit begins "
                "anew, since it was not given resume=True, and removes it once a checkpoint of its "
                "own is whole",
                UserWarning,
                stacklevel=6,
            )

    def close(self) -> None:
        """Release the path for other fits."""
        if self._lock is not None:
            self._lock.close()

    @property
    def seed(self) -> int:
        """Seed of the fit: the checkpoint's, if there is one."""
        if self._found is not None:
            return int(self._found.subject["seed"])
        return _seed(self._random_state)

    @property
    def strength(self) -> Strength | None:
        """The strength of the penalty that the resumed fit chose, or None."""
        found = None if self._found is None else self._found.subject["strength"]
        try:
            return None if found is None else Strength.read(found)
        except ValueError as error:
            raise ValueError(f"{self._directory} is damaged: {error}") from error

    def job(self, job: Job, survey: Survey) -> Job:
        """Return the job with a position to resume from, and with checkpoints, as requested.

        Raises ValueError: the data, or the model for it, differs.
        """
        if self._where is None or self._lock is None:
            return job
        run, data = job.fit, _data(job.model, survey)
        if (found := self._found) is not None:
            self._refuse(_differences(found.subject["data"], data))
            job = replace(job, model=self._model(found, job.model))
            run = found.place.run
            job = replace(job, position=self._position(found, job))
        subject = {
            "estimator": self._name,
            "seed": job.seed,
            "parameters": self._parameters,
            "data": data,
            "model": _learned(job.model),
            "strength": None if survey.strength is None else survey.strength.record(),
        }
        self._lock.add({run, *files.known_runs(self._path)})
        checkpoint = CheckpointRun(self._where, self._lock, run, subject)
        return replace(job, execution=replace(job.execution, checkpoint=checkpoint))

    def _model(self, found: LoadedCheckpoint, made: Any) -> Any:
        """Return the model with what it had learned from the data."""
        if (learned := found.subject["model"]) is None:
            return made
        kind = _kind_of(made)
        try:
            if kind is None or learned["kind"] != kind.name:
                raise ValueError(f"it is a {learned['kind']!r}")
            model = kind.read(**learned["fields"], loss=made.loss)
            if model.n_features != made.n_features or model.dtype != made.dtype:
                raise ValueError(
                    f"it has {model.n_features} features of {model.dtype}, and these parameters "
                    f"and data make one of {made.n_features} of {made.dtype}"
                )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{self._directory} has another model: {error}. {_REMEDY}") from error
        return model

    def _position(self, found: LoadedCheckpoint, job: Job) -> Position:
        """Return the position to continue from, after checks: kernels trust its numbers."""
        table, optimizer = job.model.layout.table, job.optimizer
        (check,) = (kind.read for kind in KINDS if kind.type is TrainState)
        interim = None if found.interim is None else found.interim.kept
        for kept in filter(None, (found.last, found.best, interim)):
            try:
                check(
                    params=kept.params, model=job.model, state=kept.state,
                    optimizer=optimizer, version=kept.version, epochs=len(found.history),
                    ids=None if table is None else kept.ids,
                )  # fmt: skip
            except ValueError as error:
                raise ValueError(
                    f"{self._directory} has other parameters than this model: {error}. {_REMEDY}"
                ) from error
        if found.history and found.history[-1].full_batch:  # its snapshot has no optimizer state
            optimizer.initialize(found.last.state)
        return Position(found.last, found.history, found.best, found.interim)

    @property
    def _directory(self) -> str:
        assert self._found is not None
        return self._found.place.directory

    def _check_parameters(self) -> None:
        if self._found is None:
            return
        subject = self._found.subject
        if set(subject) != _SUBJECT:
            raise ValueError(f"{self._directory} is damaged: it says nothing of its fit")
        if subject["estimator"] != self._name:
            self._refuse([f"the estimator was {subject['estimator']}, and is {self._name}"])
        differ = _differences(subject["parameters"], self._parameters)
        seed = _seed(self._random_state)
        if self._random_state is not None and seed != subject["seed"]:
            differ.append(
                f"the seed was {subject['seed']}, and is {seed} by random_state="
                f"{self._random_state!r}"
            )
        self._refuse(differ)

    def _refuse(self, differ: list[str]) -> None:
        if differ:
            raise ValueError(
                f"the fit cannot go on from {self._directory}: {'; '.join(differ)}. {_REMEDY}"
            )


def _seed(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31 - 1))


def _parameters(estimator: Trainable) -> dict[str, Fact]:
    """Return the parameters that training depends on."""
    kinds = [*KINDS, *kinds_by_name()]
    given = estimator.get_params(deep=False)
    return {name: _fact(value, kinds) for name, value in given.items() if name not in _FREE}


def _data(model: Model, survey: Survey) -> dict[str, Fact]:
    """Return the facts about the data that training depends on."""
    from dps.preprocessing.encoder import encoder_kinds

    summary, encoding = survey.summary, survey.encoding
    facts: dict[str, Any] = {
        "number of rows": summary.total,
        "number of columns": summary.n_features,
        "classes": survey.targets.classes,
        "dtype": np.dtype(model.dtype).name,
        "number of rows for validation": sum(summary.validation or ()),
    }
    described = {name: _fact(value, ()) for name, value in facts.items()}
    described |= {name: _about(values) for name, values in _sums(survey).items()}
    if encoding is not None:
        encoder = encoding.encoder
        names = ", ".join(map(str, encoder.get_feature_names_out()))
        described["encoder"] = [_fact(encoder, encoder_kinds())[0], f"one of the columns {names}"]
    if _kind_of(model) is None:
        tensors = [(t.name, *t.shape) for t in model.layout.tensors]
        described["model"] = [model.layout.digest, f"one of the tensors {tensors}"]
    return described


def _sums(survey: Survey) -> dict[str, NDArray[np.float64]]:
    """Return numbers that depend on the values of all rows, but not on their order."""
    summary = survey.summary
    labels = summary.labels.weights
    found = {"weight of the rows": labels if len(labels) else np.array([summary.targets.weight])}
    found["number of stored values"] = np.array([summary.elements, summary.square])
    for name, moments in (("y", summary.targets), ("X", summary.moments)):
        if moments is not None and moments.variance.any():
            some = slice(None, None, -(-len(moments.mean) // _COLUMNS))
            mean, deviation = moments.mean[some], np.sqrt(moments.variance[some])
            found[f"deviation of {name}"] = deviation
            # In deviations, since a mean may be zero except for rounding.
            found[f"mean of {name}"] = mean / np.where(deviation > 0, deviation, 1.0)
    return found


def _about(values: NDArray[np.float64]) -> Fact:
    """Return a fact about numbers that are compared with a tolerance."""
    shown = np.array2string(values, threshold=6, precision=6, separator=", ")
    return [_NUMBERS + json.dumps(values.tolist()), shorten(shown, 200)]


def _alike(then: str, now: str) -> bool:
    """True if two facts are equal, numbers with a tolerance."""
    if not (then.startswith(_NUMBERS) and now.startswith(_NUMBERS)):
        return then == now
    try:
        one, other = (
            np.array(json.loads(each.removeprefix(_NUMBERS)), float) for each in (then, now)
        )
        return one.shape == other.shape and np.allclose(one, other, _ROUNDING, _ROUNDING, True)
    except (ValueError, TypeError, RecursionError):
        return False


def _fact(value: object, kinds: Iterable[Kind]) -> Fact:
    """Return the fact about a value; for code its name."""
    writer = RecordWriter(kinds)
    try:
        record = json.dumps(writer(value, "value"), sort_keys=True)
    except TypeError:
        named = value if hasattr(value, "__qualname__") else type(value)
        name = f"{named.__module__}.{named.__qualname__}"
        return [name, name]
    digests = [sha256(array.tobytes()).hexdigest() for array in writer.arrays.values()]
    shown = np.array2string(value, threshold=20) if isinstance(value, np.ndarray) else repr(value)
    return [
        sha256("\n".join([record, *digests]).encode()).hexdigest(),
        shorten(shown, 200),
    ]


def _differences(then: Any, now: dict[str, Fact]) -> list[str]:
    """Describe differences; a fact that only one side has comes from another version of dps."""
    nothing = ["", "not known"]
    if not isinstance(then, dict) or not all(
        isinstance(fact, list) and len(fact) == 2 for fact in then.values()
    ):
        raise ValueError("a checkpoint does not say what its fit was about: it is damaged")
    names = dict.fromkeys([*now, *then])
    pairs = {name: (then.get(name, nothing), now.get(name, nothing)) for name in names}
    return [
        f"{name} was {was[1]}, and is {is_[1]}"
        for name, (was, is_) in pairs.items()
        if not _alike(was[0], is_[0])
    ]


def _kind_of(model: Model) -> Kind | None:
    """Return the file format of a model of dps; None for a user's model."""
    return next((kind for kind in KINDS if kind.type is type(model)), None)


def _learned(model: Model) -> dict[str, Any] | None:
    """Return a model without its loss, which may be code and is given again."""
    kind = _kind_of(model)
    if kind is None:
        return None
    fields = kind.write(model)
    return {"kind": kind.name, "fields": {n: fields[n] for n in kind.fields if n != "loss"}}
