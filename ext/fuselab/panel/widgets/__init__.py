"""What tabs are made of: widgets, markup, pictures, scripts."""
