"""The labs' tasks, a file a lab: ``LAB``."""
