"""The checks, by what they look at. Each is a pure function of gathered facts."""
