"""Ready deployment files. Copy one, name your population in it, and `fedcore serve` it."""
