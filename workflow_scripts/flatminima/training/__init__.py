"""Training that can be stopped and resumed with bit-identical weights. It measures nothing."""
