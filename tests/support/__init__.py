"""What tests share: real servers, processes, fixtures of hosts."""
