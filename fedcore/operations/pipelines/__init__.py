"""Pipelines: files in, models out, old data forgotten, by a schedule.

steps     what a file says of a pipeline
law       which steps may follow from what, so that no single client decides whether something is released
files     which files are new
append    new files to a version of the population
doing     what each other step does
journal   what was done, for people and for whoever goes on after an interruption
running   the steps of one run, in their order
page      a run of a pipeline as a page
"""
