"""Fits: measurements to constants, and prices with them; SciPy and scikit-learn live here only."""
