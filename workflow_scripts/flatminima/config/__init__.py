"""The configuration: its keys, the suites that it describes, what rules ask of a suite."""
