"""Options of fits on a cluster, in Dask's configuration under ``dps``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

from dps._checks import check_of, seconds_of

_registered = False
_TIMES = "timeout", "silence", "grace"


def register() -> None:
    """Show the defaults in Dask's configuration, once Dask is imported."""
    global _registered
    config = sys.modules.get("dask.config")
    if config is None or _registered:
        return
    import yaml  # Dask imports it

    _registered = True
    text = Path(__file__).parents[1].joinpath("dps.yaml").read_text("utf-8")
    config.update_defaults(yaml.safe_load(text))


@dataclass(frozen=True)
class Options:
    """Options of Dask's configuration, such as ``dps.timeout``; see docs/reference/options.md.

    The defaults equal those in dps.yaml, which Dask shows.

    Examples
    --------
    >>> import dask
    >>> with dask.config.set({"dps.cache": "disk"}):
    ...     Options.now().cache
    'disk'
    """

    n_shards: int | Literal["auto"] = "auto"  # see docs/concepts/shards.md
    rebalance: bool | Literal["auto"] = "auto"  # whether rows may be copied to other workers
    # Where data that Dask has not persisted is stored; None stores nothing.
    cache: Literal["auto", "memory", "disk"] | None = "auto"
    timeout: float = 60.0  # seconds without progress that raise an error
    silence: float = 2.0  # seconds without any answer after which another host is lost
    grace: float = 2.0  # seconds in which workers may stop their work, and must answer
    # Largest number of lost workers that a fit survives; None: unlimited.
    max_losses: int | None = None
    # Largest number of consecutive losses without progress that a fit survives.
    fruitless_losses: int = 3
    # What to do when a worker dies with rows that cannot be computed again.
    on_data_loss: Literal["error", "drop"] = "error"
    monitor: bool = True  # whether fits report to the dashboard

    @classmethod
    def now(cls) -> Options:
        """Return the options of this process; without Dask they are the defaults.

        Raises ValueError: an option is unknown, or its value is invalid.
        """
        register()
        config = sys.modules.get("dask.config")
        given: Any = {} if config is None else config.get("dps", {})
        if not isinstance(given, Mapping):
            raise ValueError(f"dps of dask.config must be a mapping of options, got {given!r}")
        given = {str(name).replace("-", "_"): value for name, value in given.items()}
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, 1) or known
                use = ", ".join(f"dps.{each}" for each in near)
                raise ValueError(f"dps has no option dps.{name} of dask.config: use {use}")
        times = {name: seconds_of(given[name]) for name in _TIMES if name in given}
        return cls(**given | {name: time for name, time in times.items() if time is not None})

    def __post_init__(self) -> None:
        wanted = {
            "n_shards": "a number above 0 or 'auto'",
            "rebalance": "True, False or 'auto'",
            "cache": "'auto', 'memory', 'disk' or None",
            **dict.fromkeys(_TIMES, "seconds above 0, or a time such as '30m'"),
            "max_losses": "a number from 0 on or None",
            "fruitless_losses": "a number from 0 on",
            "on_data_loss": "'error' or 'drop'",
            "monitor": "True or False",
        }
        for name, check in _checks().items():
            value = getattr(self, name)
            least = -1 if name in ("max_losses", "fruitless_losses") else 0
            small = type(value) in (int, float) and not value > least
            if small or not check(value):
                raise ValueError(f"dps.{name} of dask.config must be {wanted[name]}, got {value!r}")


@cache
def _checks() -> dict[str, Callable[[Any], bool]]:
    """A check of each option's value, by its type."""
    return {name: check_of(hint) for name, hint in get_type_hints(Options).items()}
