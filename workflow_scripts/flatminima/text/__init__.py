"""Text: where it comes from, how it becomes documents, and how documents become fixed batches."""
