"""Run by an interpreter that has the library: CPU-seconds of an iteration on given rows, from fits that differ by ten.

python peer_iterations.py KIND FILE.npz REPEATS    KIND: GaussianMixture, BayesianGaussianMixture, KMeans; arrays rows
(N, D), weights (K,), means (K, D), variances (K, D); prints JSON
"""

import json
import os
import sys
import time
import warnings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402 - after the number of threads

FEW, MORE = 2, 10


def main() -> None:
    kind, given, repeats = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")  # that nothing has converged
    version, fit = LIBRARIES[kind](kind, given)
    seconds = []
    for _ in range(repeats):
        taken = []
        for iterations in (FEW, FEW + MORE):
            started = time.process_time()
            done = fit(iterations)
            taken.append(time.process_time() - started)
            if done != iterations:
                sys.exit(f"{kind} made {done} iterations of {iterations}")
        seconds.append((taken[1] - taken[0]) / MORE)
    print(json.dumps({"version": version, "seconds": seconds}))


def mixtures(kind, given):
    import sklearn
    from sklearn import mixture

    known = {"means_init": given["means"], "weights_init": given["weights"], "precisions_init": 1 / given["variances"]}

    def fit(iterations: int) -> int:
        start = known if kind == "GaussianMixture" else {}
        model = getattr(mixture, kind)(
            n_components=len(given["means"]),
            covariance_type="diag",
            tol=0.0,
            max_iter=iterations,
            init_params="random_from_data",
            random_state=0,
            **start,
        )
        return model.fit(given["rows"]).n_iter_

    return sklearn.__version__, fit


def lloyd(kind, given):
    import dask
    import dask.array
    import dask_ml
    from dask_ml.cluster import KMeans

    x = dask.array.from_array(given["rows"], chunks=(100_000, given["rows"].shape[1])).persist(scheduler="synchronous")
    # Far from where it ends: the iterations stop when nothing moves.
    start = given["rows"][: len(given["means"])]

    def fit(iterations: int) -> int:
        with dask.config.set(scheduler="synchronous"):
            return KMeans(len(start), init=start, max_iter=iterations, tol=0.0).fit(x).n_iter_

    return dask_ml.__version__, fit


LIBRARIES = {"GaussianMixture": mixtures, "BayesianGaussianMixture": mixtures, "KMeans": lloyd}

if __name__ == "__main__":
    main()
