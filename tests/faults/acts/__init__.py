"""What a user does while something happens: a file a subject."""
