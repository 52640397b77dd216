"""What the other passes ask of a graph, and how they add to it."""
