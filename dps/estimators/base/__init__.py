"""What all estimators share: parameters, classifiers and regressors, the decorator."""
