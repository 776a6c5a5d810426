"""Requests of all APIs: those whose tokens a gateway knows, and those it leaves open."""

from tests.deployments.prompt import shapes, unknown_shapes
from tests.deployments.prompt.message_shapes import MESSAGED, UNKNOWN_MESSAGES
from tests.deployments.prompt.spellings import SPELLED

KNOWN = {
    **shapes.KNOWN,
    **{f"messages: {name}": of for name, of in MESSAGED.items()},
    **{f"spelled: {name}": of for name, of in SPELLED.items()},
}
UNKNOWN = {
    **unknown_shapes.UNKNOWN,
    **{f"messages: {name}": of for name, of in UNKNOWN_MESSAGES.items()},
}
