"""Benchmarks: ratios measured in one run, against hand-written floors. `python -m benchmarks` lists them."""
