"""Kamath, Sheffet, Singhal, Ullman 2019, as published: a reference for small data (up to some 20 000 rows).

privacy: none. The noise is simulated in plain floating point from an explicit NumPy generator, data are arrays in
memory, and nothing here can charge a ledger: it serves tests and comparisons. Runs for people are those of
`fedcore.methods.private_gmm`, whose `reference` is the partition without noise.

    mechanisms   noise, exact calibration, AboveThreshold, stability histograms, composition, principal components
    estimate     Algorithm 6, PSGE, and PGE: one Gaussian
    one_cluster  terrific balls; Algorithm 2, PTerrificRadius; GoodRadius, GoodCenter, PTerrificBall; Algorithm 5, PGLoc
    learners     Algorithm 1: spherical components of equal weight; Algorithms 3 and 4: RPGMP, PGME
    aggregate    Section 6: sample and aggregate, with the learners of its blocks

**Adjacency: a record is added or removed.** The place of a row in its array is the public name of its record; a
record that is absent is a row with a NaN or an infinity, and contributes nothing anywhere. So no statistic shifts when
a record leaves, pairs of records stay pairs, and every cell of a partition is the same array with more absent rows.
The paper means substitution, but composes as for add/remove: under substitution all of epsilon would double.
"""
