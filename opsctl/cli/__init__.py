"""Commands: parse, render, map errors; nothing else."""
