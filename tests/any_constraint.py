"""Constraints of any form, for Hypothesis and others."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.text()
            | st.sampled_from(
                ["properties", "enum", "pattern", "maxItems", "const", "anyOf", "grammar", "type"]
            ),
            inner,
        )
    ),
    max_leaves=30,
)
PATTERNS = st.text(alphabet='ab(){}[]|,0123456789\\"^-~. \n', max_size=60) | st.text()


def objects(count: int, **one: Any) -> dict[str, Any]:
    names = [f"property_{i}" for i in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, one), "required": names}
