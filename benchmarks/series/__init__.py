"""Simulated years of weekly private runs: `python -m benchmarks.series`."""
