"""L-BFGS over all rows: passes over the data, line search and arithmetic.

full_batch.py       a rank's part in a fit, pass by pass
pieces.py           the rows of a pass
passes.pyx          a sum over them, checked and rounded alike on all ranks
descent.pyx         steps of all ranks; rank 0 searches
quasi_newton.pyx    the direction and the line search
proximal.pyx        the same with an l1 penalty
pairs.pyx           steps and changes of the gradient, which describe the curvature
"""
