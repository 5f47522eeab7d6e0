"""The revisions of a suite: found, fetched ahead, described, and checked for what they are."""
