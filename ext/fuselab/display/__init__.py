"""Facts to text, HTML and pictures: pure functions."""
