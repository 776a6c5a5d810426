"""A machine that is lost without a word is noticed by the kernel, busy cores or not."""

from __future__ import annotations

import socket

import pytest

from deployments.gateway.attempt.sockets import VANISHED_AFTER_S, impatient_socket

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has this option"
)


def test_an_idle_connection_and_one_with_unacknowledged_data_break_after_the_same_time() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with impatient_socket(address) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s, period_s, probes, unacknowledged_ms = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
    assert idle_s + period_s * probes == VANISHED_AFTER_S == unacknowledged_ms / 1000
