"""Benchmarks beside other tools: ``make bench``, ``python -m workflow_scripts.bench``.

One module a row of ``benchmarks/README.md``. Nothing here is part of the workflow.
"""
