"""The base of all estimators: parameters, classifiers and regressors, the decorator."""
