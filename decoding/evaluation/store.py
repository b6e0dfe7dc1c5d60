"""The format of chains in an evaluation's working folder."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import UserError
from ..records.trace import Chain

_CHAIN = TypeAdapter(Chain)


def chain_to_plain(chain: Chain) -> dict[str, Any]:
    return _CHAIN.dump_python(chain, mode="json")


def chain_from_plain(data: dict[str, Any]) -> Chain:
    """Raises UserError for an invalid chain."""
    try:
        return _CHAIN.validate_json(json.dumps(data))  # as JSON its keys may be text, and numbers must be numbers
    except (ValidationError, TypeError, ValueError) as error:
        raise UserError("A recorded chain is damaged: delete the evaluation's folder and start over.") from error
