"""Real training steps, one file per strategy: what predictions are compared with."""
