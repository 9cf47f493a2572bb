"""Liang, Shi, Al Kontar and Fattahi (2023): experiments of PerMA, its competitors, and our dictionary learners."""
