"""Mutation tests of the privacy code: small mistakes in one module each, and the tests that must notice.

    python -m tests.audit.mutants             # all of them
    python -m tests.audit.mutants NAME ...    # those whose names begin so

No file is changed: the module is compiled from its altered text when the process of the tests imports it.
"""
