"""What a suite costs before it is run."""
