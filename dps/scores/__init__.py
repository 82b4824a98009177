"""Scores of validation rows during fits, and formulas that `dps.metrics` shares.

formulas.py     numbers of rows, and moments that merge
validation.py   what each rank reports of its rows, and the score of all
gathered.py     scorers of scikit-learn, of all rows together
"""
