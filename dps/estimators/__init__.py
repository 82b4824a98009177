"""Estimators that keep the scikit-learn contract; `dps` has those that users import."""
