"""Nats per character of held-out text by vocabulary: python -m benchmarks.vocabularies [--epsilon 1,8] [--clients N]

Clients and texts are those of `fedcore demo`: source files of installed packages, a fifth of which are public and
scored. Words are runs of letters in lower case. Public words and pieces come from Python's standard library; pieces
are a WordPiece list by the library `tokenizers` (in the extra `bench`). Every vocabulary has the whole budget but
private words, whose release takes 0.3 of it. A vocabulary with unknown words spells them uniformly, as 26 letters
and an end. The estimate for a file is the released mean, mixed with its first half by the best of seven weights.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from collections import Counter
from io import StringIO
from pathlib import Path

import numpy as np
import scipy

from fedcore import PersonalHistograms
from fedcore.cli import demo_data
from fedcore.cli.terminal import table
from fedcore.population.ingest.sources_text import by_half, sections
from fedcore.population.pieces import splitter
from fedcore.population.words import OTHER, as_words, records_of
from fedcore.population.writer import PopulationWriter
from fedcore.privacy.accounting import make_budget
from fedcore.training.budget import ledger_name, ledger_of, set_budget
from fedcore.training.vocabulary import release_vocabulary

LETTERS = 27  # and an end
PRIORS = (50, 125, 250, 500, 1000, 2000, 4000)
LEAST = 50  # words in each half of a file that is scored
RELEASE = 0.3  # of rho, for private words


def halves_of(files) -> list[tuple[Counter[str], Counter[str]]]:
    """The words of each file's two halves, by section."""
    made = []
    for name, path in files:
        found = Counter[str](), Counter[str]()
        for second, text in by_half(name, sections(StringIO(demo_data.read(path)))):
            found[second].update(words_of(text))
        made.append(found)
    return made


def words_of(text: str) -> list[str]:
    return demo_data.re.findall("[a-z]+", text.lower())


def public_words() -> Counter[str]:
    """Of Python's standard library, without its tests."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), Counter[str]()
    for path in sorted(root.rglob("*.py")):
        if not {"site-packages", "test", "tests"} & set(path.parts):
            found.update(words_of(demo_data.read(path)))
    return found


def pieces(words: Counter[str], size: int) -> list[str]:
    """A WordPiece list, letters included, so that every word can be spelled."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    trained.train_from_iterator(words.elements(), trainers.WordPieceTrainer(vocab_size=size, show_progress=False))
    letters = [mark + chr(letter) for letter in range(ord("a"), ord("z") + 1) for mark in ("", "##")]
    return sorted({*trained.get_vocab(), *letters})


def private_words(clients: list[Counter[str]], epsilon: float, delta: float) -> list[str]:
    """Released by the platform from a population of the words."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder).resolve() / 'ledger.sqlite'}"
        place = Path(folder) / "words"
        with PopulationWriter(place, "words", 1, nominal_clients=len(clients), ledger=ledger_name(url)) as writer:
            ptr = np.cumsum([0, *map(len, clients)])
            words = as_words([word for client in clients for word in client])
            amounts = np.array([amount for client in clients for amount in client.values()], np.int64)
            writer.write([str(number) for number in range(len(clients))], (ptr, records_of(words, amounts)))
            population = writer.commit(demo_data.SOURCES)
        ledger = ledger_of(population, url)
        set_budget(population, ledger, epsilon, delta, delta_extra=delta / 10, public_schema="words of a benchmark")
        return list(release_vocabulary(population, ledger).words)


def counted(clients: list[Counter[str]], vocabulary: list[str]) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """(C, d) counts, and (C,) nats of spelling the words that are not in the vocabulary."""
    features_of, other = splitter(vocabulary), len(vocabulary) - 1 if vocabulary[-1] == OTHER else None
    rows, features, amounts, spelled = [], [], [], np.zeros(len(clients))
    for row, client in enumerate(clients):
        found = Counter[int]()
        for word, amount in client.items():
            for feature in features_of(word):
                found[feature] += amount
                if feature == other:
                    spelled[row] += amount * (len(word) + 1) * np.log(LETTERS)
        rows += [row] * len(found)
        features += found.keys()
        amounts += found.values()
    shape = (len(clients), len(vocabulary))
    return scipy.sparse.csr_matrix((np.array(amounts, np.int64), (rows, features)), shape=shape), spelled


def score(mean: np.ndarray, known, held_out, spelled: np.ndarray, characters: float) -> float:
    """Nats per character. mean: (d,) of all clients; known, held_out: (C, d) counts of the two halves."""
    own = scipy.sparse.csr_matrix(known, dtype=float)
    total = np.asarray(own.sum(axis=1)).ravel()
    held = held_out.tocoo()
    share = np.asarray(own[held.row, held.col]).ravel() / np.maximum(total[held.row], 1)
    nats = []
    for prior in PRIORS:
        weight = prior / (prior + total[held.row])
        nats.append(-(held.data * np.log(weight * mean[held.col] + (1 - weight) * share)).sum())
    return float((min(nats) + spelled.sum()) / characters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", default="0.5,1,8")
    parser.add_argument("--clients", type=int, help="of the private files, at most this many")
    options = parser.parse_args()
    private, public = demo_data.split(demo_data.package_files())
    clients = [one + two for one, two in halves_of(private[: options.clients])]
    scored = [pair for pair in halves_of(public) if min(sum(half.values()) for half in pair) >= LEAST]
    known, held_out = [pair[0] for pair in scored], [pair[1] for pair in scored]
    characters = float(sum(amount * (len(word) + 1) for client in held_out for word, amount in client.items()))
    common, delta = public_words(), len(clients) ** -2.0
    ranked = [word for word, _ in common.most_common()]
    lists = {f"{size} public words": [*ranked[:size], OTHER] for size in (1000, 4000)}
    lists |= {f"{size} public pieces": pieces(common, size) for size in (1000, 4000, 8000)}
    print(f"{len(clients)} private files, {len(scored)} public ones; delta {delta:.1e}", flush=True)
    rows = []
    for epsilon in map(float, options.epsilon.split(",")):
        words, budget = private_words(clients, epsilon, delta), make_budget(epsilon, delta)
        for name, vocabulary in {**lists, "private words": [*words, OTHER]}.items():
            share = budget.epsilon_of((1 - RELEASE) * budget.rho_max) if name == "private words" else epsilon
            x, _ = counted(clients, vocabulary)
            made = PersonalHistograms(
                epsilon=share, delta=delta, nominal_clients=len(clients), public_schema="a benchmark"
            ).fit(x)
            test, spelled = counted(held_out, vocabulary)
            loss = score(np.asarray(made.mean_), counted(known, vocabulary)[0], test, spelled, characters)
            rows.append({"epsilon": epsilon, "vocabulary": name, "tokens": len(vocabulary), "nats per character": loss})
            print(rows[-1], flush=True)
    table("Nats per character of held-out text", rows)


if __name__ == "__main__":
    main()
