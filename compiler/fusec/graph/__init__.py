"""FX graph to simpler FX graph: which operators are decomposed, and into what."""
