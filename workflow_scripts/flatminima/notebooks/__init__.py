"""The companion notebooks: executed, rendered, and what they read."""
