"""Settings of federated EM that contradict each other."""

from __future__ import annotations

from fedcore.methods.federated_em.settings import COUNT_MODELS, PENALISED_BY_ROWS, TABLES, Settings

Refusals = tuple[tuple[bool, str], ...]  # (whether the settings contradict each other, how)


def contradictions(settings: Settings) -> Refusals:
    """The first that holds is what a user is told."""
    return (*_of_the_model(settings), *_of_row_weights(settings), *_of_the_algorithm(settings), *_of_privacy(settings))


def _of_the_model(settings: Settings) -> Refusals:
    tables = settings.model in TABLES
    return (
        (
            settings.kind == "counts" and settings.model not in COUNT_MODELS,
            f'kind = "counts" is for {", ".join(COUNT_MODELS)}; {settings.model} reads rows',
        ),
        (
            settings.pseudo_rows is not None and settings.model not in PENALISED_BY_ROWS,
            f"pseudo_rows is for {', '.join(PENALISED_BY_ROWS)}; {settings.model} takes regularisation",
        ),
        (
            settings.pseudo_rows is not None and settings.regularisation is not None,
            "pseudo_rows and regularisation are the same penalty in two units: give one of them",
        ),
        (
            settings.validation > 0 and settings.kind == "counts",
            "validation holds back rows of clients who have many: not of counts, which are one row",
        ),
        (tables != (settings.table_rows is not None), "table_rows is needed for tables, and for nothing else"),
    )


def _of_row_weights(settings: Settings) -> Refusals:
    if settings.weight_column is None:
        return ()
    return (
        (settings.kind == "counts", "weight_column is for rows: counts have no column of weights"),
        (settings.model in TABLES, "weight_column is for models of rows: a table is many rows, each with its weight"),
        (
            settings.variance_reduced or settings.batch is not None,
            "weight_column needs all rows of a client: no batch, and no vr-fedem, which draws batches",
        ),
        (
            settings.private,
            "a private run takes no weight_column: a weight that a client chooses is not covered by the bound on what "
            "one client changes",
        ),
    )


def _of_the_algorithm(settings: Settings) -> Refusals:
    exact = settings.algorithm == "em"
    return (
        (
            exact and (settings.codec_name != "identity" or settings.participation < 1 or settings.batch is not None),
            'algorithm = "em" is exact: it takes no codec, participation or batch; choose "fedem"',
        ),
        (settings.variance_reduced and settings.participation < 1, "vr-fedem needs all clients in every round"),
        (
            len({settings.v_min is None, settings.field_lipschitz is None, settings.objective_lipschitz is None}) > 1
            or (settings.variance_reduced and settings.v_min is not None and settings.v_max is None),
            "the theorems' step needs v_min, field_lipschitz, objective_lipschitz together, and v_max for vr-fedem",
        ),
        (settings.inner_rounds is not None and not settings.variance_reduced, "inner_rounds is for vr-fedem"),
        (settings.kept is not None and settings.codec_name != "rand-k", 'kept is for codec = "rand-k"'),
        (
            settings.algorithm == "naive" and (bool(settings.alpha) or settings.memory_start == "full"),
            "the naive variant keeps no memories: it takes neither alpha nor memory_start",
        ),
        *_of_natural_units(settings),
    )


def _of_natural_units(settings: Settings) -> Refusals:
    if not settings.natural:
        return ()
    return (
        (not settings.mixture, f'codec = "natural" is for mixtures, not {settings.model}'),
        (settings.algorithm == "naive", 'codec = "natural" needs memories, which the naive variant does not keep'),
        (
            settings.of_other_codecs,
            'levels, norm, norms_by_part, alpha and memory_start are for other codecs than codec = "natural"',
        ),
    )


def _of_privacy(settings: Settings) -> Refusals:
    if not settings.private:
        return ((settings.epsilon is not None, f'epsilon is for algorithm = "private", not {settings.algorithm!r}'),)
    return (
        (settings.kind != "rows" or settings.model in TABLES, "a private run reads rows, not counts or tables"),
        (settings.start_name != "given", 'a private run starts from public parameters: start = "given"'),
        (settings.codec_name != "identity", "a private run sends sums, not compressed messages: no codec"),
        (settings.participation < 1, "a private run asks all clients: sampling is not accounted for"),
        (settings.batch is not None, "a private run uses all rows of a client: no batch"),
        (settings.memory_start == "full" or bool(settings.alpha), "a private run keeps no memories"),
        (settings.validation > 0, "a private run may not look at rows that are held back: no validation"),
        (
            settings.monitor_every is not None or settings.tolerance > 0,
            "a private run may not look at the objective: no monitor_every, no tolerance",
        ),
        (
            settings.pseudo_rows is not None,
            "the penalty of a private run may not follow from the number of rows: "
            "write regularisation, a share, for pseudo_rows",
        ),
        (settings.starts_tried > 1, "a private run cannot compare starts"),
        (settings.weights == "rows", 'a private run counts each client once: weights = "clients"'),
    )
