"""Estimators around PyTorch modules; the only part of dps that needs PyTorch (``dps[torch]``)."""

try:
    import torch  # noqa: F401
except ImportError as error:  # it is no dependency of dps
    raise ImportError("dps.torch needs PyTorch: pip install 'dps[torch]'") from error

from dps.torch.estimators import TorchClassifier, TorchRegressor

__all__ = ["TorchClassifier", "TorchRegressor"]


def __dir__() -> list[str]:
    return __all__
