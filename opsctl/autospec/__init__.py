"""When to speculate: load, policy, guards."""
