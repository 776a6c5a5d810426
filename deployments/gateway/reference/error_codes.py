"""Every error code that a client of a gateway may get, as docs/api.md lists them."""

from __future__ import annotations

from collections.abc import Mapping

from deployments.gateway.api import key_codes, load_codes, operator_codes, request_codes
from deployments.process.connection_refusals import CODES
from deployments.process.error_code import ErrorCode, codes_in

ERROR_CODES: Mapping[str, tuple[ErrorCode, ...]] = {
    "Keys and rights": codes_in(vars(key_codes)),
    "The request": codes_in(vars(request_codes)),
    "Load and failures": codes_in(vars(load_codes)),
    "Canaries and adapters": codes_in(vars(operator_codes)),
    "Connections": CODES,
}
