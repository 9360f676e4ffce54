"""A real SGLang server on CPU, for tests: its environment, tiny models, and a handle on it."""
