"""Loop-level IR: index expressions, value graphs, bodies, programs, and their interpretations."""
