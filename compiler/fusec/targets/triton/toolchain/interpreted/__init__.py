"""What an interpreted kernel runs under: some programs alone, what a GPU does not let pass."""
