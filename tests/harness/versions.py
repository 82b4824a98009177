"""Versions of peers, for what differs between them."""

from __future__ import annotations

import pandas
import sklearn
from packaging.version import parse

SKLEARN = parse(sklearn.__version__).release[:2]
PANDAS = parse(pandas.__version__).release[:2]

#: Of a LogisticRegression with an L1 penalty.
L1 = {"l1_ratio": 1.0} if SKLEARN >= (1, 8) else {"penalty": "l1"}
