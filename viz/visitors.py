"""Visitors' addresses, and how many runs one visitor may have at a time."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from decoding.errors import UserError

if TYPE_CHECKING:
    import gradio as gr

PER_SESSION = 4  # runs of one browser tab or one program: a race, both reports, and one to spare
PER_ADDRESS = 12  # per internet address: half of the places in the queue


def address_of(visitor: gr.Request | None) -> str:
    """The visitor's internet address; "" if unknown, as on this machine or network.

    Behind a proxy it is the last address in the proxy's header, which the proxy itself saw; earlier ones are
    unverified.
    """
    client = getattr(visitor, "client", None)
    host = getattr(client, "host", "") or ""
    if not _is_public(host):
        host = visitor.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() if visitor is not None else ""
    return host if _is_public(host) else ""


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def check_share(of_session: int, of_address: int) -> None:
    """Raises UserError if the visitor has too many runs under way."""
    if of_session >= PER_SESSION:
        raise UserError(f"You have {of_session} runs under way, the maximum: wait for one to end, or stop it.")
    if of_address >= PER_ADDRESS:
        raise UserError(f"{of_address} runs from your address are under way, the maximum: try again soon.")
