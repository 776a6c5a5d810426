"""The recorded chats, which quick tests compare with a gateway's, are vLLM's own."""

import pytest

from tests.deployments.prompt.recorded_messages import by_vllm, recorded

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def test_vllm_makes_the_recorded_chats_of_anthropics_messages() -> None:
    assert by_vllm() == recorded()
