"""Measuring: traffic for demos and benchmarks."""
