"""The audit of one run or one hub model without any configuration: ``workflow_scripts/audit.py``.

One module a part: what is asked (``options``), where the checkpoints come from (``sources``),
the fixed batches (``validation``), the answer (``plateau``), what is shown and written
(``report``), and the order of it all (``run``).
"""
