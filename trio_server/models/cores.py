"""How many physical cores this process may run on. Only `plan.py` asks."""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Physical cores among the CPUs this process may run on; where the system does not say, every CPU counts as one."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            siblings = (_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings.strip())
    return max(1, len(cores))


def default_threads() -> int:
    """ggml's threads spin at barriers and one that is descheduled stalls all, so the server keeps a core for itself."""
    return max(1, physical_cores() - 1)
