"""Setlur, Feldman and Talwar (2023): their algorithms as the method `paper_histograms`, Table 1, the reference on one
page, and clusters that are known.

    method, config  the method with one small model of settings for each algorithm
    algorithms      FedAvg, Algorithms 1 and 2, DimRed, and IFCA (Ghosh et al. 2020)
    published       private centring with simulated noise (Algorithm 3), which protects nobody
    clients         what clients are asked and answer, in all of them
    table1          the table, beside estimates that know the truth of a synthetic population (Lemma 2.2)

None of it is private. The private method is `histograms`.
"""

from fedcore.papers.histograms.config import PaperHistogramsConfig
from fedcore.papers.histograms.method import PaperHistograms

__all__ = ["PaperHistograms", "PaperHistogramsConfig"]
