"""Measuring collectives: what to ask, the processes that take part, who died, and their files of results."""
