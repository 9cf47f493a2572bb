"""Prefect tasks and the Dask backend: load, call one core function, store, return a reference."""
