"""Alertmanager's configuration: pages at once, tickets later, and no duplicates.

It is valid as it is, but has no receivers: only these must be added.
"""

from __future__ import annotations

from observability.alerts.rules import HEADER
from observability.alerts.slo_file import SloFile

_TEXT = """\
route:
  receiver: ticket
  group_by: [alertname, pool]
  routes:
    - matchers: [service="{service}", severity="page"]
      receiver: page
      group_wait: 10s
      group_interval: 1m
      repeat_interval: 1h
    - matchers: [service="{service}", severity="ticket"]
      receiver: ticket
      group_wait: 5m
      group_interval: 15m
      repeat_interval: 1d

inhibit_rules:
  # the page covers the ticket
  - source_matchers: [service="{service}", severity="page"]
    target_matchers: [service="{service}", severity="ticket"]
    equal: [alertname, slo, pool, Hostname, gpu]
  # late and failed requests have separate pages
  - source_matchers: [service="{service}", severity="page", slo=~"ttft|tpot|e2e|availability"]
    target_matchers: [service="{service}", severity="page", slo="goodput"]
    equal: [pool]
  # without metrics, all other alerts are out of date
  - source_matchers: [alertname="AntefixMetricsDown", severity="page"]
    target_matchers: [service="{service}", alertname!="AntefixMetricsDown"]

# Add where to send alerts below each receiver, such as
#     webhook_configs: [{{url_file: /etc/alertmanager/webhook-url}}]
# with the address in a file, because it may be a secret.
# https://prometheus.io/docs/alerting/latest/configuration/#receiver
receivers:
  - name: page
  - name: ticket
"""


def render(slo_file: SloFile) -> str:
    """Return the configuration file, as YAML."""
    return HEADER + _TEXT.format(service=slo_file.service)
