"""`fedcore demo series`: simulated years of weekly private runs."""
