"""Step graphs as SVG: the layout, the colors, the drawing."""
