"""Training that can stop anywhere and ends with the same bits; it writes weights only."""
