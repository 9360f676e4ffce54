"""What runs in the engine's interpreter; it imports nothing of opsctl."""
