"""Views, copies, windows, and reading at computed places."""
