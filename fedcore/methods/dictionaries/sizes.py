"""How many atoms, atoms of a code and rounds there are, where the settings leave it to the features."""

from __future__ import annotations

from fedcore.methods.dictionaries.config import DictionariesConfig

GLOBAL_ATOMS = 100
OVERCOMPLETE = 2  # global atoms at most, for each feature
PRIVATE_ATOMS, PRIVATE_SPARSITY = 64, 10  # noise costs the square of the number of atoms
LOCAL_SHARE = 5  # global atoms for each local one
SPARSITY = 20
FEATURES_PER_CODE = 4  # a code of more atoms than this share of the features compresses nothing
WIDEST = 4  # ratio of the largest and the least number of atoms of a code while learning
ROUNDS, PRIVATE_ROUNDS = 60, 20


def global_atoms_of(config: DictionariesConfig, features: int) -> int:
    """Global atoms rg, from settings and public facts alone."""
    if config.global_atoms is not None:
        return config.global_atoms
    if config.atoms is not None:
        return config.atoms - config.atoms // (LOCAL_SHARE + 1)
    return min(PRIVATE_ATOMS if config.private else GLOBAL_ATOMS, OVERCOMPLETE * features)


def atoms_of(config: DictionariesConfig, features: int, common: int = 0) -> int:
    """Atoms r of a client's dictionary at most: global and local ones. common: global ones, where these are known."""
    if config.atoms is not None:
        return config.atoms
    count = common or global_atoms_of(config, features)
    if config.private:  # which learns no local atoms; a client has some if they are asked for
        return count
    return count + -(-count // LOCAL_SHARE)


def local_atoms_of(config: DictionariesConfig, features: int, count: int) -> int:
    """Local atoms of a client at most, beside so many global ones. A private run learns none; clients have some only
    where they are asked for."""
    if config.private and config.atoms is None:
        return 0
    return max(atoms_of(config, features, count) - count, 0)


def sparsity_of(config: DictionariesConfig, features: int) -> int:
    """Atoms k of a sample's code."""
    most = PRIVATE_SPARSITY if config.private else SPARSITY
    return config.sparsity or max(min(most, features // FEATURES_PER_CODE), 1)


def least_sparsity_of(config: DictionariesConfig, features: int) -> int:
    """Least k of a sample while global atoms are learnt, at most `sparsity_of`."""
    k = sparsity_of(config, features)
    return min(config.least_sparsity or max(k // WIDEST, 1), k)


def rounds_of(config: DictionariesConfig) -> int:
    """Rounds T."""
    return config.rounds or (PRIVATE_ROUNDS if config.private else ROUNDS)
