"""The contract of estimators: parameters, the job of a fit, and fitted attributes.

Fits, files and served models use estimators through it.
"""

from __future__ import annotations

import functools
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from dps._sklearn import CallbackSupportMixin
from dps.estimators.base.habits import refuse_classes
from dps.estimators.predict.predict import FittedModel, Raw
from dps.losses import Loss
from dps.modes import Mode
from dps.preprocessing import FrameEncoder
from dps.scores.validation import Score
from dps.training.checkpoint.options import Checkpoint
from dps.training.state import TrainState

if TYPE_CHECKING:
    from dps._typing import Auto, ClientLike, MatrixLike, ModeLike, RandomState, ScoringLike
    from dps.data.survey.rows import Inspection
    from dps.estimators.fit.survey import Request, Survey
    from dps.parameter_server import ParameterServer
    from dps.training.job import Job
    from dps.training.state import Snapshot


@dataclass(eq=False, repr=False, kw_only=True)
class Trainable(CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """An estimator as its fit, its files and served models use it.

    Parameters of a subclass are fields of a dataclass, so each is declared once. `_plan` says how
    its model is trained, and `_fitted` what users see of it.
    """

    max_iter: int | Auto = 1000
    tol: float | None = 1e-4
    shuffle: bool | Literal["global"] = True
    random_state: RandomState = None
    early_stopping: bool | Auto = False
    validation_fraction: float = 0.1
    scoring: ScoringLike = "loss"
    n_iter_no_change: int | Auto = 5
    warm_start: bool = False
    verbose: int = 0
    encoder: FrameEncoder | Auto = "auto"
    batch_size: int | Auto = "auto"
    mode: ModeLike = "sync"
    n_replicas: int | Auto = "auto"
    checkpoint: Checkpoint | None = None
    client: ClientLike | None = None
    server: ParameterServer | str | None = None

    _classification: ClassVar[bool]
    #: Classes of its models, for files, and the saved attributes.
    _model_type: ClassVar[Any] = None
    _saved: ClassVar[tuple[str, ...]] = ("_model", "_params", "alpha_", "alpha_path_")
    #: Parameters that may be code, which is not saved.
    _code: ClassVar[tuple[str, ...]] = ()
    #: True if the user writes the model.
    _is_own: ClassVar[bool] = False
    #: Strength of the penalty as a multiple of "auto"; None: `find_strength` finds it.
    _alpha_times: ClassVar[float | None] = None
    #: Parameters of the default encoder.
    _encoder_parameters: ClassVar[Mapping[str, Any]] = {}
    #: True if training is planned to its last epoch, so that reaching it causes no warning.
    _ends_as_planned: ClassVar[bool] = False

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "shuffle": ["boolean", StrOptions({"global"})],
        "random_state": ["random_state"],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "scoring": [str, Score, callable],  # for functions the error explains what to do
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "encoder": [FrameEncoder, StrOptions({"auto"})],
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "mode": [str, Mode],
        "n_replicas": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "checkpoint": [Checkpoint, None],
        "client": "no_validation",
        "server": "no_validation",
    }

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__.get("_parameter_constraints", {})
        cls._parameter_constraints = {}
        for base in reversed(cls.__mro__[1:]):
            cls._parameter_constraints |= getattr(base, "_parameter_constraints", {})
        cls._parameter_constraints |= own

    @classmethod
    @functools.cache
    def _get_param_names(cls) -> list[str]:
        """Names of the parameters, cached: scikit-learn reads the signature each time."""
        names: list[str] = super()._get_param_names()
        return names

    def _validate_params(self) -> None:
        refuse_classes(self, self._parameter_constraints)
        super()._validate_params()

    @abstractmethod
    def _plan(self, survey: Survey) -> Job:
        """Return the job for the surveyed data, usually by :meth:`Survey.job`.

        Each fit calls it after the survey; it leaves the estimator as it is.
        """

    @abstractmethod
    def _fitted(self, model: Any, params: NDArray[np.floating]) -> dict[str, Any]:
        """Return the fitted attributes for a model and its parameters (n,)."""

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss that the user gave."""

    @property
    def _stops_early(self) -> bool:
        """True if early stopping is on; networks and machines decide "auto" themselves."""
        return self.early_stopping != "auto" and bool(self.early_stopping)

    @property
    def _most_epochs(self) -> int:
        """Largest number of epochs, as far as the parameters say."""
        return int(self.max_iter)

    def _check(self, request: Request) -> None:
        """Raise if parameters contradict each other; no data has been read yet."""

    def _leaves_out_columns(self, request: Request) -> bool:
        """True if parameters of columns without values keep their start."""
        return False

    def _restore_columns(self, survey: Survey, job: Job, kept: Snapshot) -> tuple[Any, Snapshot]:
        """Return the model of all columns, with its parameters and state."""
        return job.model, kept

    def _inspection(self, request: Request) -> Inspection:
        """Return the options of the inspection, after an encoder has learned."""
        from dps.data.survey.rows import Inspection

        return Inspection()

    def _useful_logarithms(self, survey: Survey) -> NDArray[np.integer]:
        """Return columns of encoded rows to replace by their logarithms."""
        return np.empty(0, np.intp)

    def _attributes(self, model: Any, params: NDArray[np.floating]) -> dict[str, Any]:
        """Attributes of a fitted model for predictions, warm starts and files."""
        found = self._fitted(model, params)
        return found | {"_model": model, "_params": params} if "_params" in self._saved else found

    def _raw(self) -> Raw:
        """Return the trained model."""
        return FittedModel(self._model, self._params)

    def _warm(self) -> TrainState | None:
        """Return the state from which `fit` starts with ``warm_start=True``."""
        return TrainState(self._params, self._model) if hasattr(self, "_model") else None

    def _tensor_names(self, model: Any) -> list[str]:
        """Return the names of the model's tensors on a server, see `_tensors`."""
        return [tensor.name for tensor in model.layout.tensors if tensor.size]

    def _tensors(self, model: Any, params: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
        """Return a model's parameters by name, as a server holds them."""
        views = model.layout.views(np.ascontiguousarray(params))
        return {name: views[name] for name in self._tensor_names(model)}

    def _from_tensors(
        self, model: Any, tensors: Mapping[str, NDArray[np.floating]]
    ) -> tuple[Any, NDArray[np.floating]]:
        """Return a model and its parameters from the tensors of a server."""
        params = np.zeros(model.layout.size, model.dtype)
        for name, view in model.layout.views(params).items():
            if view.size:
                view[...] = tensors[name]
        return model, params

    @classmethod
    def _is_option(cls, name: str) -> bool:
        """True if a parameter is for the maker of the model, see `MakesModel`."""
        return False

    @abstractmethod
    def predict(self, X: MatrixLike) -> Any:
        """Predict rows. The result is lazy for Dask input."""
