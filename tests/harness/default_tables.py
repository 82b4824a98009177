"""The table of docs/reference/defaults.md, made of the parameters of the estimators.

Run as a program it writes that part anew.
"""

from __future__ import annotations

from pathlib import Path

import dps

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "defaults.md"
BEGIN = "<!-- Made of the parameters of the estimators by tests/harness/default_tables.py. -->\n"
END = "<!-- End of the generated table. -->\n"
KINDS = (dps.LinearClassifier, dps.MLPClassifier, dps.FMClassifier, dps.ModelClassifier)
#: Why families differ.
REASONS = {
    "max_iter": "linear models end by `tol`; networks and machines plan their updates, about 2,500",
    "tol": "a planned learning rate is followed to its end, unless the loss gets worse",
    "early_stopping": "networks and machines fit few rows too closely; `True` or `False` is taken "
    'by all, and "auto" is `False` where that is the default',
    "validation_fraction": "networks depend the most on when they stop",
    "n_iter_no_change": "as many epochs as `max_iter` makes worth waiting for",
    "average": "steps of networks and machines jitter; L-BFGS, the default of linear models, does "
    "not; models of your own step as published",
    "alpha": "of a model of your own, dps knows no scale",
}


def shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def table() -> str:
    """A row a parameter."""
    models = [kind(None) if kind is dps.ModelClassifier else kind() for kind in KINDS]
    params = [model.get_params(deep=False) for model in models]
    lines = ["| | linear | MLP | FM | Model, Torch | they differ, because |", "|---" * 6 + "|"]
    for name, why in REASONS.items():
        values = [f"`{shown(each[name])}`" if name in each else "" for each in params]
        assert len(set(values)) > 1, f"{name} does not differ"
        lines.append(f"| `{name}` | {' | '.join(values)} | {why} |")
    known = {name for each in params for name in each}
    shared = [name for name in known if all(name in each for each in params)]
    differ = {n for n in shared if len({repr(each[n]) for each in params}) > 1}
    assert differ <= REASONS.keys(), f"why do {differ - REASONS.keys()} differ?"
    return "\n".join(lines) + "\n"


def written() -> str:
    """The page with that part as the parameters are."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written())
