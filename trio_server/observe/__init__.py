"""What the server tells about itself: the log now, metrics later. No room below it is imported."""
