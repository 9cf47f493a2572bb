"""The private mode of dictionaries: shared atoms from clipped sums with noise (docs/privacy/dictionaries.md)."""
