"""Writing and adding at computed places."""
