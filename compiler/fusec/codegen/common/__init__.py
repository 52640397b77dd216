"""What all targets share: signatures, names, analyses of bodies that do not ask for a language."""
