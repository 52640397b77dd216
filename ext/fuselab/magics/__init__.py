"""The magics: options, errors and display."""
