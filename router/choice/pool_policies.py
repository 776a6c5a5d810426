"""The policies of one pool, each with its memory: those that requests name, and the shadow."""

from __future__ import annotations

from router.choice.placement import Placement
from router.choice.policies import Candidate, Policy, make_policy


class PoolPolicies:
    """`shadow` decides too, is compared, and is not followed."""

    def __init__(self) -> None:
        self.shadow: Policy | None = None
        self._policies: dict[str, Policy] = {}
        self._default = ""
        self._shadow_name: str | None = None

    def change(self, default: str, shadow: str | None) -> None:
        """Use these from now on. Raises ValueError for a shadow that does not exist, and changes
        nothing then."""
        if shadow != self._shadow_name:
            self.shadow = make_policy(shadow) if shadow else None
            self._shadow_name = shadow
        self._default = default

    def called(self, name: str | None) -> Policy:
        """Return the policy of this name; None: the pool's. Raises ValueError if none has it."""
        name = name or self._default
        if name not in self._policies:
            self._policies[name] = make_policy(name)
        return self._policies[name]

    def took(self, placement: Placement, chosen: Candidate) -> None:
        """Record where a request goes, and where the shadow would have sent it."""
        if placement.policy in self._policies:
            self._policies[placement.policy].took(chosen.replica_id)
        if self.shadow is not None and placement.shadow is not None:
            self.shadow.took(placement.shadow.replica_id)
