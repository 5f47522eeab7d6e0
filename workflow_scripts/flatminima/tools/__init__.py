"""Tools for your own run: the audit, the Trainer's callback, the schedules, costs of a suite.

    from flatminima.tools import ConvergenceCallback, get_oli_schedule

A name is imported when it is first used. A monitor therefore does not load the Trainer, and a
schedule does not load transformers.
"""

from importlib import import_module

_MODULES = {
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
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"flatminima.tools has no {name}; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)
