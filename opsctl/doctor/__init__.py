"""What a host must be like to serve, and whether it is: read, judged, explained; never changed."""
