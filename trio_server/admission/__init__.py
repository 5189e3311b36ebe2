"""Who may work, for how long, and what a refused client is told. Knows no HTTP; the routes translate its exceptions."""

from trio_server.admission.lanes import EngineFull, Lanes, LanesStatistics, Lease
from trio_server.admission.retry_after import HoldAverage, retry_after_s
from trio_server.admission.running import Cut, Running, Work

__all__ = ["Cut", "EngineFull", "HoldAverage", "Lanes", "LanesStatistics", "Lease", "Running", "Work", "retry_after_s"]
