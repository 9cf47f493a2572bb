"""Pipelines: ingest files, train models and forget old data, by a schedule.

steps     declaration of a pipeline in a file
`law`     on what steps may depend, so that no single client decides whether something is released
files     which files are new
append    new files to a version of the population
doing     what each other step does
journal   what was done, for people and for continuing after an interruption
running   the steps of one run, in their order
page      a run of a pipeline as a page
"""
