"""Serving: the owner loop, its pure state machine, and the HTTP front."""
