"""The error of a configuration that cannot be run."""


class ConfigError(ValueError):
    """A mistake in the configuration, said in one line."""
