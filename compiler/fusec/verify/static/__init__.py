"""What is read of a candidate before it runs: its library, instructions, Python."""
