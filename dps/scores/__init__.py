"""Each score once: fits score rows for validation, `dps.metrics` and searches those that are given.

formulas.py     numbers of rows, and moments that merge
validation.py   what each rank reports of its rows, and the score of all
gathered.py     scorers of scikit-learn, of all rows together
"""
