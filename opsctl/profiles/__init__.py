"""Launch profiles: complete, named ways to start an engine."""
