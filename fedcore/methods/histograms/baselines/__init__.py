"""What the private pipeline is compared with: the paper's algorithms as they stand, without privacy, and oracles.

    before_rounds   passes that all of them begin with: the mean, the covariance of DimRed, the centres of Algorithm 1
    fedavg          the mean alone (Lemma 2.1)
    algorithm2      Lloyd's iterations in KL (Algorithm 2)
    ifca            gradient steps in place of cluster means (Ghosh et al. 2020)
    published       private centring with simulated noise (Algorithm 3), which protects nobody
    oracle          estimates that know the truth of a synthetic population (Lemma 2.2)

Each algorithm is four functions: `init`, `total_rounds`, `message`, `server_update`. The clients' side of all of
them is `clients.client_update`.
"""
