"""Data for experiments whose truth is known, and errors against that truth."""
