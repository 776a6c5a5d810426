"""The use of a pool by tenant: engine seconds, as virtual time.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): the tenant with the least use goes
next. A returning tenant starts at the position of the others. Time that it did not use is not
saved, and use without competition does not count against it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

# The use of this many tenants is kept.
TENANTS_KEPT = 4096
# A tenant without a request for this long no longer counts for the shares.
TENANT_ACTIVE_S = 600.0


class FairShare:
    """`weights`: a tenant of weight 2 is due twice the engine seconds of one of weight 1, the
    default."""

    def __init__(self) -> None:
        self.weights: Mapping[str, float] = {}
        self._now = 0.0
        # in order of the latest charge, the newest last
        self._had: OrderedDict[str, float] = OrderedDict()

    def had(self, tenant: str) -> float:
        """Return virtual seconds: the tenant with the least is served next."""
        return max(self._now, self._had.get(tenant, 0.0))

    def charge(self, tenant: str, work_s: float) -> None:
        """Charge the tenant, which is served now, with `work_s` engine seconds."""
        self._now = self.had(tenant)
        self._had[tenant] = self._now + work_s / self._weight(tenant)
        self._had.move_to_end(tenant)
        if len(self._had) > TENANTS_KEPT:
            self._had.popitem(last=False)

    def settle(self, tenant: str, work_s: float) -> None:
        """Correct a charge by the engine seconds that it took more (or less)."""
        if tenant in self._had:
            self._had[tenant] += work_s / self._weight(tenant)

    def until(self, tenant: str, virtual_s: float) -> float:
        """Return the engine seconds that the tenant is served before its virtual time is
        `virtual_s`."""
        return max(0.0, virtual_s - self.had(tenant)) * self._weight(tenant)

    def after(self, tenant: str, work_s: float) -> float:
        """Return its virtual time after `work_s` more engine seconds."""
        return self.had(tenant) + work_s / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)


class ActiveTenants:
    """Tenants with recent requests. Times are seconds of any one clock."""

    def __init__(self) -> None:
        # time of each tenant's latest request, the newest last
        self._heard: OrderedDict[str, float] = OrderedDict()

    @property
    def are_several(self) -> bool:
        return len(self._heard) > 1

    def heard_of(self, tenant: str, now: float) -> None:
        self._heard[tenant] = now
        self._heard.move_to_end(tenant)
        while now - next(iter(self._heard.values())) > TENANT_ACTIVE_S:
            self._heard.popitem(last=False)
