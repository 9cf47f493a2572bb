"""Kamath, Sheffet, Singhal and Ullman (2019): tables, theory and simulated mixtures."""
