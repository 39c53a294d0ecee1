"""The use cases that the command line (and later HTTP) call."""
