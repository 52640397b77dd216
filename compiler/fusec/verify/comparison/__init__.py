"""Results held against eager's and float64's."""
