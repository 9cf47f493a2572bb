"""Private learning of separated Gaussian mixtures (Kamath, Sheffet, Singhal, Ullman 2019)."""
