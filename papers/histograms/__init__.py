"""Setlur, Feldman and Talwar (2023): Table 1, the reference on one page, and clusters that are known."""
