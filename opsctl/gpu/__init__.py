"""GPUs: who holds their memory and why, and how it is freed."""
