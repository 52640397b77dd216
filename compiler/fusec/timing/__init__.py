"""How long things take and how fast they could be, measured so that the figures can be believed."""
