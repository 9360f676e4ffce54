"""The simulated engine: behaves like an SGLang server tree, without a GPU."""
