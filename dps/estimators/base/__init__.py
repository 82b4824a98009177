"""The base of all estimators: parameters, classifiers, regressors and the decorator."""
