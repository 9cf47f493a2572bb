"""Federated, private, unsupervised learning over populations too large for memory."""

__version__ = "0.1.0"
