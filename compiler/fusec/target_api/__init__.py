"""What a target is, and which there are: the targets themselves are the folders of ``targets``."""
