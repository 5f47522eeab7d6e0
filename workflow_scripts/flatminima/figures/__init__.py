"""The figures of the paper, and the one style they share."""
