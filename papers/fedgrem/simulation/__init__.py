"""Data for experiments: the paper's simulations, contamination of clients' rows, and errors from a known truth."""
