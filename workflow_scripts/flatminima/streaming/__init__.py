"""Probes of models that are larger than memory: the layers are read one after another."""
