"""What methods of atoms share: codes, distances, moves of atoms, stacks of clients, and what comes of a dictionary."""
