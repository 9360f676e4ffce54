"""What opsctl tells about itself: the journal of events and metrics."""
