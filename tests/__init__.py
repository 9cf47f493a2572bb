"""One thread of the BLAS in test processes and in those that tests start, unless the environment names another number.

The processes of pytest-xdist take all cores already: more threads would spend most of their time in waiting for each
other. This is imported before NumPy.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
