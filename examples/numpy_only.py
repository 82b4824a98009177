"""NumPy data without a cluster
============================

Without a Dask client dps trains in threads of this process. Here it is the last step of a scikit-
learn pipeline.
"""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dps import LinearClassifier

if __name__ == "__main__":
    X, y = load_breast_cancer(return_X_y=True)
    for loss in ("log_loss", "hinge", "modified_huber"):
        model = make_pipeline(StandardScaler(), LinearClassifier(loss=loss, random_state=0))
        print(f"{loss:15} accuracy {cross_val_score(model, X, y).mean():.3f}")

# %%
# It prints::
#
#     log_loss        accuracy 0.981
#     hinge           accuracy 0.972
#     modified_huber  accuracy 0.965
