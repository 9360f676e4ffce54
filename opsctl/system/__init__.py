"""The only place for raw side effects on the host."""
