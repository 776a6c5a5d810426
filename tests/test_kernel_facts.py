"""What `weights.kernels` says of vLLM's kernels, and refuses, asked of vLLM.

It fails when a new vLLM knows other names, other group sizes or other GPUs, or takes what is
refused. No engine is started: vLLM says all this before it loads a model.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.deployments.fleet.weighed_pools import Pool, fleet_file
from tests.deployments.fleet.weights_refused import REFUSED
from weights.kernels import kernels

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

# A separate process: importing vLLM takes half a gigabyte and changes settings of other tests.
SCRIPT = """
import inspect, json, os, sys

answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from types import SimpleNamespace

from vllm.config.kernel import LinearBackend
from vllm.config.quantization import _ONLINE_SHORTHANDS, ONLINE_QUANT_SHORTHAND_NAMES
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels.linear import _LINEAR_BACKEND_KERNEL_MAP
from vllm.model_executor.kernels.linear.mixed_precision.machete import MacheteLinearKernel
from vllm.model_executor.kernels.linear.mixed_precision.marlin import MarlinLinearKernel
from vllm.model_executor.layers.quantization import (
    DEPRECATED_QUANTIZATION_METHODS,
    QUANTIZATION_METHODS,
    get_quantization_config,
)
from vllm.model_executor.layers.quantization.compressed_tensors import schemes
from vllm.model_executor.layers.quantization.online.base import _ONLINE_LINEAR_METHODS
from vllm.model_executor.layers.quantization.online.fp8 import Fp8PtpcOnlineLinearMethod
from vllm.model_executor.layers.quantization.utils import marlin_utils
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.scalar_type import scalar_types

asked = json.load(sys.stdin)
A100 = DeviceCapability(8, 0)


def named(method):
    config = get_quantization_config(method)
    types = config.get_supported_act_dtypes
    types = types() if inspect.ismethod(types) else types(None)
    return [config.get_min_capability(), [str(each).removeprefix("torch.") for each in types]]


def taken(name, quantization):
    "As ModelConfig._verify_quantization decides, in its order."
    order = ["auto_gptq", "gptq", "gptq_marlin", "auto_awq", "awq", "awq_marlin", "moe_wna16"]
    for method in order:
        config = get_quantization_config(method)
        override = config.override_quantization_method(quantization, name)
        if override is not None:
            return True
    return name == quantization["quant_method"]


def on(cpu):
    "What is taken there; an A100 stands for all GPUs."
    platform = type(current_platform)
    platform.is_cpu = lambda self: cpu
    platform.get_device_capability = classmethod(lambda *_: None if cpu else A100)
    return [taken(name, quantization) for name, quantization in asked["pairs"]]


def complaint(arguments):
    "What vLLM says before it loads anything; empty: nothing."
    try:
        EngineArgs(**arguments).create_engine_config()
    except Exception as error:
        return str(error)
    return ""


complaints = [complaint(arguments) for arguments in asked["engines"]]

types = {"uint4": True, "uint4b8": False, "uint8b128": False}
facts = {
    "methods": {method: named(method) for method in asked["methods"]},
    "names": QUANTIZATION_METHODS,
    "deprecated": DEPRECATED_QUANTIZATION_METHODS,
    "online": list(ONLINE_QUANT_SHORTHAND_NAMES),
    "experts_alone": [name for name, of in _ONLINE_SHORTHANDS.items() if of.linear is None],
    "linears_online": sorted({str(key.dtype) for key in _ONLINE_LINEAR_METHODS}),
    "per_channel": inspect.getsource(Fp8PtpcOnlineLinearMethod.create_weights),
    "groups": marlin_utils.MARLIN_SUPPORTED_GROUP_SIZES,
    "schemes": {
        name: getattr(schemes, name).get_min_capability() for name in asked["schemes"]
    },
    "marlin": MarlinLinearKernel.get_min_capability(),
    "backends": list(_LINEAR_BACKEND_KERNEL_MAP),
    "complaints": complaints,
    "on_cpus": on(True),
    "on_gpus": on(False),
}
facts["marlin_types"] = {
    str(capability): [
        marlin_utils.check_marlin_supported(getattr(scalar_types, name), 128, zeros, capability)
        for name, zeros in types.items()
    ]
    for capability in (70, 75)
}
facts["awq_without_zero_points"] = marlin_utils.check_marlin_supported(
    scalar_types.uint4, 128, False, 80
)
with answer:
    json.dump(facts, answer)
"""

SCHEMES = {
    "CompressedTensorsWNA16": kernels.LEAST_FOR_INTEGERS,
    "CompressedTensorsW8A8Int8": kernels.LEAST_FOR_INTEGERS,
    "CompressedTensorsW8A16Fp8": kernels.LEAST_FOR_INTEGERS,
    "CompressedTensorsW8A8Fp8": kernels.LEAST_FOR_FP8,
    "CompressedTensorsW4A4Fp4": kernels.LEAST_FOR_INTEGERS,
}
NAMES = (*kernels.NEED_A_CHECKPOINT, *kernels.EXPERTS_WHILE_LOADING, "moe_wna16")
CHECKPOINTS: tuple[dict[str, Any], ...] = (
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    {"quant_method": "compressed-tensors"},
    {"quant_method": "fp8", "activation_scheme": "dynamic"},
)
# What vLLM decides from only the configs.
BY_CONFIGS = (
    "a format that vLLM dropped",
    "another quantization than the checkpoint's",
    "a quantization of plain weights",
    "a name that vLLM's CPU build does not take",
    "heads over GPUs",
    "a context beyond the model's",
    "a context beyond the model's by positions that lengthen nothing",
    "a draft of other words",
    "a draft that GPUs do not divide",
    "a type that no kernel computes in",
)
PAIRS = [(name, checkpoint) for name in NAMES for checkpoint in CHECKPOINTS]


def engine_of(folder: Path, pool: Pool) -> dict[str, Any]:
    """Of a model without weights, which vLLM would look into."""
    folder.mkdir()
    written = yaml.safe_load(fleet_file(folder, pool._replace(size=0)).read_text())
    model = written["pools"]["engine"]
    arguments = model["engine_args"]
    if arguments.get("max_model_len") == "16K":
        arguments["max_model_len"] = 16384  # as vLLM's command line reads it
    return {"model": model["model"], **arguments}


@pytest.fixture(scope="module")
def facts(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("engines")
    cases = [REFUSED[name] for name in BY_CONFIGS]
    pools = [pool for case in cases for pool in (case.wrong, case.right)]
    engines = [engine_of(folder / str(at), pool) for at, pool in enumerate(pools)]
    asked = {
        "methods": list(kernels.METHODS),
        "schemes": list(SCHEMES),
        "pairs": PAIRS,
        "engines": engines,
    }
    done = subprocess.run(
        [warm_python, "-c", SCRIPT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cast(dict[str, Any], json.loads(done.stdout))


def as_number(capability: kernels.Capability) -> int:
    return 10 * capability[0] + capability[1]


def test_every_method_has_the_minimum_gpu_and_the_types_of_vllm(facts: dict[str, Any]) -> None:
    told = {
        method: [as_number(least), sorted(types)]
        for method, (least, types) in kernels.METHODS.items()
    }
    # its linear layers insist on Marlin, so that it begins where Marlin does
    told["gptq"][0] = 60
    assert told == {
        method: [least, sorted(types)] for method, (least, types) in facts["methods"].items()
    }


def test_gptq_and_awq_have_the_minimum_gpu_of_marlin(facts: dict[str, Any]) -> None:
    assert facts["marlin"] == as_number(kernels.METHODS["gptq"][0])
    assert facts["marlin_types"] == {"70": [False, False, False], "75": [True, True, True]}


def test_marlin_accepts_the_listed_groups(facts: dict[str, Any]) -> None:
    assert facts["groups"] == list(kernels.MARLIN_GROUPS)


def test_marlin_rejects_awq_without_zero_points(facts: dict[str, Any]) -> None:
    assert facts["awq_without_zero_points"] is False


def test_every_scheme_has_the_minimum_gpu_of_vllm(facts: dict[str, Any]) -> None:
    assert facts["schemes"] == {name: as_number(least) for name, least in SCHEMES.items()}


def test_a_quantization_name_fits_the_checkpoints_that_vllm_accepts_it_for(
    facts: dict[str, Any],
) -> None:
    told = [kernels.fits(name, checkpoint["quant_method"]) for name, checkpoint in PAIRS]
    assert told == facts["on_gpus"]


def test_the_cpu_build_accepts_awq_only_by_its_plain_name(facts: dict[str, Any]) -> None:
    awq = [
        name
        for (name, checkpoint), taken in zip(PAIRS, facts["on_cpus"], strict=True)
        if taken and checkpoint["quant_method"] == "awq"
    ]
    assert [name for name in awq if name != "moe_wna16"] == ["awq"]


@pytest.mark.parametrize("at", range(len(BY_CONFIGS)), ids=BY_CONFIGS)
def test_vllm_rejects_each_wrong_setting_and_accepts_the_remedy(
    at: int, facts: dict[str, Any]
) -> None:
    wrong, right = facts["complaints"][2 * at : 2 * at + 2]
    assert wrong
    # the CPU build does not take the name that is right on GPUs
    assert right == "" or BY_CONFIGS[at] == "another quantization than the checkpoint's"


def test_only_experts_become_int8_while_they_load(facts: dict[str, Any]) -> None:
    assert facts["linears_online"]
    assert "torch.int8" not in facts["linears_online"]


def test_fp8_by_channel_refuses_the_kernel_of_older_gpus(facts: dict[str, Any]) -> None:
    assert "isinstance(self.fp8_linear, MarlinFP8ScaledMMLinearKernel)" in facts["per_channel"]
    assert "Requires SM89+" in facts["per_channel"]


def test_the_quantization_names_are_those_of_vllm(facts: dict[str, Any]) -> None:
    known = set(facts["names"])
    assert {*NAMES, *kernels.WHILE_LOADING, *kernels.METHODS} <= known
    assert set(kernels.WHILE_LOADING) <= set(facts["online"])
    assert "int8_per_channel_weight_only" in facts["experts_alone"]
    assert not known & set(kernels.GONE)
    assert set(kernels.DEPRECATED) == set(facts["deprecated"])
    assert set(kernels.SLOW_BACKENDS) <= set(facts["backends"])
