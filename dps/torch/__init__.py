"""Estimators for PyTorch modules; only this package needs PyTorch (``dps[torch]``)."""

try:
    import torch  # noqa: F401
except ImportError as error:  # it is not a dependency of dps
    raise ImportError("dps.torch needs PyTorch: pip install 'dps[torch]'") from error

from dps.torch.estimators import TorchClassifier, TorchRegressor

__all__ = ["TorchClassifier", "TorchRegressor"]


def __dir__() -> list[str]:
    return __all__
