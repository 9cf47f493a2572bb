"""Run by an interpreter that has pfl: CPU-seconds of the EM-GMM client updates of pfl-research (Apple) on given rows.

python peer_pfl.py FILE.npz    arrays rows (C, m, D), weights (K,), means (K, D), variances (K, D); prints JSON
"""

import json
import sys
import time

import numpy as np
import pfl
from pfl.internal.distribution import DiagonalGaussian, Mixture
from pfl.model.gaussian_mixture_model import GaussianMixtureModel


def main() -> None:
    given = np.load(sys.argv[1])
    components = zip(given["weights"], given["means"], given["variances"], strict=True)
    mixture = Mixture([(float(weight), DiagonalGaussian(mean, variance)) for weight, mean, variance in components])
    model = GaussianMixtureModel(given["means"].shape[1], mixture)
    total, started = None, time.process_time()
    for rows in given["rows"]:
        _, statistics = model.get_mixture_statistics(rows, 1.0, 1.0)
        total = statistics if total is None else total + statistics
    seconds = time.process_time() - started
    counts = [float(total[f"responsibility-{g}"].item()) for g in range(len(given["weights"]))]
    print(json.dumps({"version": pfl.__version__, "seconds": seconds, "counts": counts}))


if __name__ == "__main__":
    main()
