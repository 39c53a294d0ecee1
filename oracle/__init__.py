"""Predicts: plain Python and NumPy, and the vocabulary that every other package fills."""
