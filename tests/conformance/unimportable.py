"""A module of an author that cannot be imported."""

raise ValueError("a mistake on the first line")
