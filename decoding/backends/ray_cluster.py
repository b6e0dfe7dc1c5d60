"""The Ray cluster that this process joins, or starts on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray

from ..errors import UserError

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 3  # at starting a cluster of this machine


def start_cluster() -> None:
    """Start a cluster of this machine. Ray gives up after 30 s, within which a busy machine may not do it.

    Its workers get the usual priority, not Ray's low one: other programs would show in the times.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # after Ray's 5 s it kills one that starts
    os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5")  # Ray's 0.1 s take 2% of a core, here a device's
    for left in reversed(range(ATTEMPTS)):
        try:
            return join_cluster("local", include_dashboard=False)
        except UserError:
            if not left:
                raise


def join_cluster(address: str, **options: Any) -> None:
    """Make this process one of the cluster's, unless it is one. Raises UserError."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    variables = {"PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
    runtime_env = {"env_vars": variables}
    try:
        ray.init(address=address, log_to_driver=False, runtime_env=runtime_env, configure_logging=False, **options)
    except Exception as error:  # of any kind: one that does not start in time raises a bare Exception
        ray.shutdown()  # what has started
        why = (str(error).splitlines() or [""])[0][:200]
        where = "this machine" if address == "local" else address
        raise UserError(f"No Ray cluster answers at {where} ({why}).") from error
