"""Looking at what is stored, and verifying it."""
