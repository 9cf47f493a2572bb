"""Facts about the machine, and how fast it copies memory and multiplies matrices: what a round is held against.

The cost model of a round is two numbers: the bytes that it must read once, over the speed of a copy, and the
multiplications and additions of its matrix products, over the speed of a large product; both on one thread, measured
in the same run, in CPU-seconds. A share of 1 means that nothing can be gained without reading less or multiplying less.
Exponentials, logarithms and sorting are in neither.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import psutil
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.measured import Measured, seconds

COPIED = 256 * 2**20  # bytes, more than caches hold
ORDER = 1024  # of the matrices that are multiplied


@dataclass(frozen=True)
class Limits:
    """bandwidth: bytes read and written in a second by a copy; double, single: flops in a second of a product of
    float64 and float32 matrices. One thread."""

    bandwidth: Measured
    double: Measured
    single: Measured

    def shares(self, seconds: float, bytes_read: float, flops: float, kind: str = "double") -> dict[str, float]:
        """What of the seconds the cost model accounts for: reading alone, products alone."""
        return {"of_bandwidth": bytes_read / self.bandwidth / seconds, "of_gemm": flops / getattr(self, kind) / seconds}

    def rows(self) -> list[dict]:
        return [
            {"what": "copy of 256 MiB", "GB_per_s": self.bandwidth.map(lambda value: value / 1e9)},
            *(
                {"what": f"product of {ORDER} x {ORDER}, {name}", "gflop_per_s": speed.map(lambda value: value / 1e9)}
                for name, speed in (("float64", self.double), ("float32", self.single))
            ),
        ]


def limits(repeats: int = 5, copied: int = COPIED, order: int = ORDER) -> Limits:
    """Measured on one thread in CPU-seconds, so that others' work changes little."""
    source, target = np.ones(copied // 8), np.zeros(copied // 8)
    with threadpool_limits(1):
        copy = seconds(lambda: np.copyto(target, source), repeats, process_time)
        products = [
            seconds(lambda a=np.ones((order, order), kind): np.matmul(a, a), repeats, process_time)
            for kind in (np.float64, np.float32)
        ]
    return Limits(
        copy.map(lambda taken: 2.0 * source.nbytes / taken),
        *(product.map(lambda taken: 2.0 * order**3 / taken) for product in products),
    )


def facts() -> dict:
    """JSON: what identifies the machine and the libraries that decide how fast it computes."""
    blas = next((library for library in threadpool_info() if library["user_api"] == "blas"), {})
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": " ".join(str(blas[name]) for name in ("internal_api", "version", "architecture") if blas.get(name)),
    }


def load() -> float:
    """Processes that wanted a core in the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor that does not say
        return platform.processor() or platform.machine()
