"""The configuration: read, inherited, and checked before any job starts, one line per mistake."""
