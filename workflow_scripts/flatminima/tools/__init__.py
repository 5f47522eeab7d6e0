"""One's own run: the audit, the Trainer's callback, the schedules, what shipping it would cost.

    from flatminima.tools import ConvergenceCallback, get_oli_schedule

A name is imported when it is asked for, so that torch and transformers are not loaded for
the schedule of a run, nor the Trainer for a monitor.
"""

from importlib import import_module

_HOMES = {
    "ConvergenceMonitor": "flatminima.convergence_monitor",
    "MonitorError": "flatminima.convergence_monitor",
    "paired_standard_error": "flatminima.convergence_monitor",
    "ConvergenceCallback": "flatminima.tools.callback",
    "AuditOptions": "flatminima.tools.audit_options",
    "audit": "flatminima.tools.audit",
    "get_cosine_neox_schedule": "flatminima.tools.lr_schedulers",
    "get_cosine_schedule": "flatminima.tools.lr_schedulers",
    "get_oli_schedule": "flatminima.tools.lr_schedulers",
    "get_sgdr_schedule": "flatminima.tools.lr_schedulers",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"flatminima.tools has no {name}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
