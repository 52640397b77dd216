"""What looks at a compiled graph from above: compiles it otherwise to see what that is worth."""
