"""What a person reads about a fleet file that is wrong, word for word."""

import pytest

from common.yaml_file import read_yaml
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import FleetError, check_text, parse_fleet
from deployments.fleet.settings.kv_tiers import PrefillSettings

SLO = "slo: {interactive: {ttft_s: 1}}"
SMALLEST = "name: small\npools:\n  engine:\n    model: embedded\n"


def fleet_of(text: str) -> Fleet:
    return parse_fleet(text, check_engine_args=False)


def complaint_of(text: str) -> str:
    with pytest.raises(FleetError) as caught:
        fleet_of(text)
    return str(caught.value)


def with_pool(lines: str) -> str:
    """The smallest fleet with more `lines` in its pool; they begin on line 5."""
    return SMALLEST + "".join(f"    {line}\n" for line in lines.splitlines())


@pytest.mark.parametrize(
    "number", ["10", "0", "0x10", "1_000", "1e3", '"010"', "-1", "true", "off", "yes"]
)
def test_an_unambiguous_number_is_read(number: str) -> None:
    assert read_yaml(f"name: {number}\n", "").faults == ()


def with_redis(url: str) -> str:
    return f"{SMALLEST}redis:\n  url: {url}\n"


GGUF = (
    "a GGUF file, which vLLM cannot read. Convert the file with antefix quantize, and write the"
    " path of the folder that this creates."
)
# What stands in the file, and the one line a person sees.
WRONG: dict[str, tuple[str, str]] = {
    "removed key": (
        SMALLEST + "gateway: {resume_within_s: 20}\n",
        ":5: gateway.resume_within_s: this key was removed. Delete it. A lost gateway ends its"
        " streams, and clients send these requests again. `pools.NAME.resume` still selects how the"
        " answers of a lost engine are resumed. OpenAI's background mode will let clients"
        " fetch the rest of an answer.",
    ),
    "empty": (
        "",
        ":1: the file is empty. Begin with name: and pools:, as fleets/laptop.yaml does.",
    ),
    "a list": (
        "- a\n",
        ":1: not a mapping. Begin with name: and pools:, as fleets/laptop.yaml does.",
    ),
    "unclosed bracket": (
        "name: [a\npools: {}\n",
        ":2: not YAML, column 6: expected ',' or ']', but got ':' (while parsing a flow sequence)."
        " Correct the syntax.",
    ),
    "tab": (
        "name: a\npools:\n\tengine:\n",
        ":3: not YAML, column 1: found character '\\t' that cannot start any token"
        " (while scanning for the next token). Indent with spaces, not tabs.",
    ),
    "bare variable in braces": (
        SMALLEST + "    env: {A: ${B}}\n",
        ":5: not YAML, column 15: expected ',' or '}', but got '{' (while parsing a flow mapping)."
        ' Quote it inside { }: "${VARIABLE}".',
    ),
    "octal": (
        with_pool("replicas: 010"),
        ":5: pools.engine.replicas = 010: YAML reads it as 8, an octal number."
        ' Omit the leading zeros, or quote the text: "010".',
    ),
    "base 60": (
        SMALLEST + "gateway: {request_timeout_s: 1:30}\n",
        ":5: gateway.request_timeout_s = 1:30: YAML reads it as 90, a number to the base of 60."
        ' Write the number of seconds, or quote the text: "1:30".',
    ),
    "a pool whose name is a word for true": (
        "name: small\npools:\n  on:\n    model: embedded\n",
        ':3: pools.on: YAML reads it as true. Quote it: "on".',
    ),
    "a date": (
        with_pool("revision: 2026-11-28"),
        ':5: pools.engine.revision = 2026-11-28: YAML reads it as a date. Quote it: "2026-11-28".',
    ),
    "two documents": (
        SMALLEST + "---\nname: b\n",
        ":5: not YAML, column 1: but found another document"
        " (expected a single document in the stream). Correct the syntax.",
    ),
    "control character": (
        "name: a\x07\n",
        ":1: contains the control character 0x07. Remove it.",
    ),
    "alias of itself": (
        SMALLEST + "    engine_args: &a {x: *a}\n",
        ":5: pools.engine.engine_args.x: an alias that contains itself. Write the value in full.",
    ),
    "duplicate key": (
        with_pool("replicas: 1\nreplicas: 2"),
        ":6: pools.engine.replicas: given twice, first on line 5. Keep one of the two.",
    ),
    "no name": (
        "pools: {engine: {model: embedded}}\n",
        ":1: name: missing. Add it: it has no default.",
    ),
    "bad name": (
        SMALLEST.replace("small", "My_Fleet"),
        ":1: name = My_Fleet: not a DNS label."
        " Use lower case letters, digits and inner hyphens, 63 at most.",
    ),
    "no pools": ("name: a\npools: {}\n", ":2: pools = {}: empty. Add at least one entry."),
    "empty pool": (
        "name: a\npools:\n  engine:\n",
        ":3: pools.engine = null: not a mapping. Write keys below it, each with a value.",
    ),
    "no model": (
        "name: a\npools:\n  engine:\n    replicas: 2\n",
        ":3: pools.engine.model: missing. Add it: it has no default.",
    ),
    "bad model": (
        SMALLEST.replace("embedded", "my model"),
        ":4: pools.engine.model = my model: neither `embedded`, a Hugging Face id nor a path."
        " Write organization/model, or begin a path with / or ./.",
    ),
    "GGUF file": (
        SMALLEST.replace("embedded", "./models/Llama.Q4_K_M.gguf"),
        f":4: pools.engine.model = ./models/Llama.Q4_K_M.gguf: {GGUF}",
    ),
    "GGUF file of a repository": (
        SMALLEST.replace("embedded", "org/Llama-GGUF/Llama.Q4_K_M.gguf"),
        f":4: pools.engine.model = org/Llama-GGUF/Llama.Q4_K_M.gguf: {GGUF}",
    ),
    "GGUF file of a repository, by its tag": (
        SMALLEST.replace("embedded", "org/Llama-GGUF:Q4_K_M"),
        f":4: pools.engine.model = org/Llama-GGUF:Q4_K_M: {GGUF}",
    ),
    "path without a usable name": (
        SMALLEST.replace("embedded", "/models/my model"),
        ":3: pools.engine.served_model_name = my model: not a model name."
        " Use letters, digits and . _ : / @ + -, 128 at most.",
    ),
    "a pool that is no mapping, with the name of a secret": (
        "name: a\npools: {token: 5}\n",
        ":2: pools.token = 5: not a mapping. Write keys below it, each with a value.",
    ),
    "mistyped key": (
        with_pool("replica: 2"),
        ":5: pools.engine.replica: unknown key. Did you mean replicas?",
    ),
    "mistyped section": (
        SMALLEST + "gatway: {port: 80}\n",
        ":5: gatway: unknown key. Did you mean gateway?",
    ),
    "unknown key": (
        SMALLEST + "redis: {sentinel: x}\n",
        ":5: redis.sentinel: unknown key. Known here: url, lookup_budget_ms.",
    ),
    "true for a number": (
        with_pool("replicas: true"),
        ":5: pools.engine.replicas = true: not a whole number. Write one, such as 1.",
    ),
    "text for a number": (
        SMALLEST + 'gateway: {port: "8000"}\n',
        ":5: gateway.port = '8000': not a whole number. Write 8000, without quotes.",
    ),
    "exponent that YAML reads as text": (
        with_pool("prefill_rate: 1e6"),
        ":5: pools.engine.prefill_rate = '1e6': not a number. Write 1000000, without quotes.",
    ),
    "fraction of a replica": (
        with_pool("replicas: 1.5"),
        ":5: pools.engine.replicas = 1.5: not a whole number. Write one, such as 1.",
    ),
    "port out of range": (
        SMALLEST + "gateway: {port: 80000}\n",
        ":5: gateway.port = 80000: too high. Write at most 65535.",
    ),
    "no time at all": (
        SMALLEST + "gateway: {request_timeout_s: 0}\n",
        ":5: gateway.request_timeout_s = 0: too low. Write more than 0.",
    ),
    "endless timeout": (
        SMALLEST + "gateway: {request_timeout_s: .inf}\n",
        ":5: gateway.request_timeout_s = inf: not a finite number. Write one, such as 600.",
    ),
    "number in env": (
        with_pool("env:\n  VLLM_CPU_KVCACHE_SPACE: 1"),
        ":6: pools.engine.env.VLLM_CPU_KVCACHE_SPACE = 1: not text. Put quotes around it.",
    ),
    "secret number in env": (
        with_pool("env:\n  HF_TOKEN: 42"),
        ":6: pools.engine.env.HF_TOKEN = ***: not text. Put quotes around it.",
    ),
    "reserved variable": (
        with_pool('env: {CUDA_VISIBLE_DEVICES: "0"}'),
        ":5: pools.engine.env.CUDA_VISIBLE_DEVICES: Antefix sets this itself."
        " Ray chooses the GPUs of a replica. Set resources in the pool.",
    ),
    "unset variable": (
        with_pool("env:\n  A: x${AFX_UNSET}"),
        ":6: pools.engine.env.A = x${AFX_UNSET}: the environment variable AFX_UNSET is not set."
        " Run export AFX_UNSET=..., or write the value here.",
    ),
    "malformed variable": (
        with_pool("env:\n  A: ${B:-c}"),
        ":6: pools.engine.env.A = ${B:-c}: contains a ${ that does not start a ${VARIABLE}."
        " Write $${ for a plain ${.",
    ),
    "reserved engine argument": (
        with_pool("engine_args:\n  kv-events-config: {}"),
        ":6: pools.engine.engine_args.kv-events-config: Antefix sets this itself."
        " Antefix configures the KV events that feed its index. Leave it out.",
    ),
    "family of reserved engine arguments": (
        with_pool("engine_args:\n  data_parallel_size: 2"),
        ":6: pools.engine.engine_args.data_parallel_size: Antefix sets this itself."
        " Antefix distributes requests to replicas itself. Set replicas in the pool.",
    ),
    "engine argument with dashes": (
        with_pool("engine_args:\n  --max-model-len: 2"),
        ":6: pools.engine.engine_args.--max-model-len: not the name of a vLLM flag."
        " Write max_model_len, without dashes.",
    ),
    "engine argument in two spellings": (
        with_pool("engine_args:\n  max-model-len: 2\n  max_model_len: 3"),
        ":7: pools.engine.engine_args.max_model_len = 3: given twice, once with - and once with _."
        " Keep one of the two.",
    ),
    "engine arguments in a list": (
        with_pool("engine_args: [--enforce-eager]"),
        ":5: pools.engine.engine_args = a list of 1: not a mapping."
        " Write keys below it, each with a value.",
    ),
    "GPUs that do not fit": (
        with_pool("resources: {gpus: 2}\nengine_args: {tensor_parallel_size: 4}"),
        ":5: pools.engine.resources.gpus = 2: the engine uses 4"
        " (tensor_parallel_size 4 x pipeline_parallel_size 1). Set it to 4, or leave it out.",
    ),
    "overflow to nowhere": (
        with_pool(f"overflow: {{to: smal}}\n{SLO}") + "  small:\n    model: a/b\n",
        ":5: pools.engine.overflow.to = smal: no pool has this name. Did you mean small?",
    ),
    "overflow to itself": (
        with_pool(f"overflow: {{to: engine}}\n{SLO}"),
        ":5: pools.engine.overflow.to = engine: a pool cannot overflow to itself."
        " Name another pool.",
    ),
    "overflow without an SLO": (
        with_pool("overflow: {to: b}") + "  b: {model: a/b}\n",
        ":5: pools.engine.overflow: without an SLO no request overflows."
        " Set slo.interactive.ttft_s, or leave it out.",
    ),
    "overflow that ends before it begins": (
        with_pool(f"overflow: {{to: b, enter: 1, leave: 1.5}}\n{SLO}") + "  b: {model: a/b}\n",
        ":5: pools.engine.overflow.leave = 1.5: above `enter`, 1. Set it to at most 1.",
    ),
    "bounds the wrong way round": (
        with_pool(f"autoscaling: {{min_replicas: 3, max_replicas: 2}}\n{SLO}"),
        ":5: pools.engine.autoscaling.min_replicas = 3: above `max_replicas`, 2."
        " Set it to at most 2.",
    ),
    "only warm replicas": (
        with_pool(f"warm_replicas: 2\nautoscaling: {{max_replicas: 2}}\n{SLO}"),
        ":5: pools.engine.warm_replicas = 2: autoscaling.max_replicas, 2, leaves no replica"
        " for traffic. Set it to at most 1.",
    ),
    "a host tier without a size": (
        with_pool("kv_tiers: {host_bytes: much}"),
        ":5: pools.engine.kv_tiers.host_bytes = much: not a size. Write bytes, or a number and its"
        " unit, such as 64Gi.",
    ),
    "a host tier that vLLM is to set too": (
        with_pool("kv_tiers: {host_bytes: 1Gi}\nengine_args: {kv-offloading-size: 4}"),
        ":6: pools.engine.engine_args.kv_offloading_size = 4: kv_tiers sets this flag."
        " Leave out engine_args.kv_offloading_size, or leave out kv_tiers.",
    ),
    "a host tier without a prefix cache": (
        with_pool("kv_tiers: {host_bytes: 1Gi}\nengine_args: {enable_prefix_caching: false}"),
        ":5: pools.engine.kv_tiers: the engine does not cache prefixes."
        " Leave out engine_args.enable_prefix_caching, or leave out kv_tiers.",
    ),
    "a disk tier in a folder that depends on where the engine starts": (
        with_pool("kv_tiers: {host_bytes: 1Gi, disk: {folder: cache, max_bytes: 1Gi}}"),
        ":5: pools.engine.kv_tiers.disk.folder = cache: not an absolute path. Write one,"
        " such as /var/cache/antefix.",
    ),
    "speculation without a draft": (
        with_pool("speculation: {when_slower: stop}"),
        ":5: pools.engine.speculation: the engine does not speculate."
        " Add engine_args.speculative_config, or leave it out.",
    ),
    "exact answers without a proof": (
        with_pool("resume: exact\nresources: {gpus: 1}"),
        ":5: pools.engine.resume = exact: nothing proves that another engine on GPUs makes the same"
        " tokens. Run antefix prove-resume on such a GPU and write the resume_proof that it prints,"
        " or write resume: continued.",
    ),
    "a proof of what is not asked for": (
        with_pool("resume: off\nresume_proof: 0123456789abcdef"),
        ":6: pools.engine.resume_proof = 0123456789abcdef: resume: off does not use a proof."
        " Write resume: exact, or leave out resume_proof.",
    ),
    "quality without a limit": (
        with_pool("quality: {}"),
        ":5: pools.engine.quality = {}: sets no limit."
        " Write max_kl, max_ppl_increase or min_scores, or leave it out.",
    ),
    "quality of a model that is no folder": (
        with_pool("quality: {max_kl: 0.1}"),
        ":5: pools.engine.quality: the model is not a folder, so it cannot contain a report."
        " Write the path of the model's folder, or leave `quality` out.",
    ),
    "one port for two servers": (
        with_pool("replicas: 1") + "metrics: {port: 8000}\n",
        ":6: metrics.port = 8000: the gateways listen on this port too. Choose another.",
    ),
    "an SLO file that is not there": (
        with_pool("slo: my-slo.yaml"),
        ":5: pools.engine.slo = my-slo.yaml: no usable SLO file: my-slo.yaml: no such file."
        " Write its path, or `default`.",
    ),
    "a budget that is too small": (
        with_pool("replicas: 2\nengine_args: {tensor_parallel_size: 4}") + "gpu_budget: 6\n",
        ":7: gpu_budget = 6: the pools always have 8 (engine 8)."
        " Raise it, or lower their min_replicas.",
    ),
    "a budget that the beginning exceeds": (
        with_pool(
            "replicas: 3\nautoscaling: {min_replicas: 1, max_replicas: 4}\n"
            "slo: {interactive: {ttft_s: 2}}"
        )
        + "gpu_budget: 2\n",
        ":8: gpu_budget = 2: the pools begin with 3 (engine 3)."
        " Raise it, or lower their replicas or warm_replicas.",
    ),
    "warm replicas without an SLO": (
        with_pool("warm_replicas: 2"),
        ":5: pools.engine.warm_replicas = 2: without an SLO they never receive traffic."
        " Set slo.interactive.ttft_s, or add them to `replicas`.",
    ),
    "autoscaling without an SLO": (
        with_pool("autoscaling: {max_replicas: 2}"),
        ":5: pools.engine.autoscaling: without an SLO autoscaling cannot compute how many "
        "replicas are needed."
        " Set slo.interactive.ttft_s.",
    ),
    "an SLO of no time": (
        with_pool("slo: {interactive: {ttft_s: 0}}"),
        ":5: pools.engine.slo.interactive.ttft_s = 0: too low. Write more than 0.",
    ),
    "a median above the promise": (
        with_pool("slo: {interactive: {ttft_s: 1, ttft_p50_s: 2}}"),
        ":5: pools.engine.slo.interactive: ttft_p50_s 2.0 is above ttft_s 1.0. The "
        "median cannot have the longer objective: lower ttft_p50_s.",
    ),
    "an end before the first token": (
        with_pool("slo: {interactive: {ttft_s: 2, e2e_s: 1}}"),
        ":5: pools.engine.slo.interactive: e2e_s 1.0 is below ttft_s 2.0. An answer cannot end "
        "before its first token: raise e2e_s.",
    ),
    "an unknown priority": (
        SMALLEST + "gateway: {tenants: {crawler: {priority: low}}}\n",
        ":5: gateway.tenants.crawler.priority = low: input should be 'interactive' or 'batch'."
        " See docs/fleet-file.md.",
    ),
    "a link that is a script": (
        SMALLEST + "gateway: {links: {Grafana: 'javascript:alert(1)'}}\n",
        ":5: gateway.links.Grafana = javascript:alert(1): not a web address. Begin it with https://"
        " or http://.",
    ),
    "the old name of overflow": (
        with_pool("overflow_to: b"),
        ":5: pools.engine.overflow_to: this key was removed."
        " Write `overflow: {to: NAME}` in the same pool.",
    ),
    "a key that was removed": (
        with_pool("prestart: true"),
        ":5: pools.engine.prestart: this key was removed."
        " Set `warm_replicas` to have loaded engines that take over at once.",
    ),
    "no replica": (
        with_pool("replicas: 0"),
        ":5: pools.engine.replicas = 0: too low. Write at least 1.",
    ),
    "one model name in two pools": (
        SMALLEST + "  other:\n    model: embedded\n",
        ":5: pools.other.served_model_name = smollm2-135m-instruct:"
        " pools.engine serves this model name too. Give one of the two another name.",
    ),
    "a LoRA adapter named as a model": (
        with_pool("engine_args:\n  lora_modules: [{name: smollm2-135m-instruct, path: /a}]"),
        ":6: pools.engine.engine_args.lora_modules = smollm2-135m-instruct:"
        " pools.engine serves this model name too. Give one of the two another name.",
    ),
    "redis without scheme": (
        with_redis("localhost:6379"),
        ":6: redis.url = localhost:6379: not a Redis URL. Write it as redis://host:6379/0.",
    ),
    "redis without scheme, with a password": (
        with_redis("me:hunter2@h:6379"),
        ":6: redis.url = me:***@h:6379: not a Redis URL. Write it as redis://host:6379/0.",
    ),
    "redis of another kind": (
        with_redis("valkeys://h"),
        ":6: redis.url = valkeys://h: unknown scheme valkeys://."
        " Valkey speaks Redis's protocol: write rediss://.",
    ),
    "redis with a slash in its password": (
        with_redis("redis://me:hunt/er2@h:6379"),
        ":6: redis.url = redis://me:***@h:6379:"
        " the user or password contains a character that ends it."
        " Percent-encode it: / is %2F, @ is %40, ? is %3F.",
    ),
    "redis with a port out of range": (
        with_redis("redis://:hunter2@h:66666"),
        ":6: redis.url = redis://:***@h:66666: the port of the host is out of range."
        " A port is 1 to 65535.",
    ),
    "sentinel without service": (
        with_redis("redis+sentinel://a:1,b:2"),
        ":6: redis.url = redis+sentinel://a:1,b:2: names no Sentinel service."
        " Write redis+sentinel://host:26379/mymaster, or /mymaster/0.",
    ),
    "cluster with a database": (
        with_redis("redis+cluster://a:1,b:2/3"),
        ":6: redis.url = redis+cluster://a:1,b:2/3: a Redis Cluster has database 0 only."
        " Remove the path after the host.",
    ),
    "several plain hosts": (
        with_redis("redis://a:1,b:2"),
        ":6: redis.url = redis://a:1,b:2: names several hosts."
        " Several are for redis+sentinel:// or redis+cluster://.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_with_its_line_and_a_remedy(case: str) -> None:
    text, complaint = WRONG[case]
    assert complaint_of(text) == f"fleet.yaml{complaint}"


def test_a_cycle_of_overflow_is_reported_at_every_pool_in_it() -> None:
    text = with_pool(f"overflow: {{to: b}}\n{SLO}")
    text += f"  b: {{model: a/b, overflow: {{to: engine}}, {SLO}}}\n"
    assert complaint_of(text).splitlines() == [
        "fleet.yaml:5: pools.engine.overflow.to = b: overflow forms a circle: engine -> b -> "
        "engine."
        " Remove one of these overflows.",
        "fleet.yaml:7: pools.b.overflow.to = engine: overflow forms a circle: b -> engine -> b."
        " Remove one of these overflows.",
    ]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = (
        "name: A\ngateway: {prot: 1}\nredis: {url: x}\npools:\n"
        "  engine: {model: embedded, overflow: {to: nil}, env: {B: '${AFX_UNSET}'}, "
        f"{SLO}}}\n"
    )
    with pytest.raises(FleetError) as caught:
        fleet_of(text)
    assert [(problem.line, problem.path) for problem in caught.value.faults] == [
        (1, "name"),
        (2, "gateway.prot"),
        (3, "redis.url"),
        (5, "pools.engine.env.B"),
        (5, "pools.engine.overflow.to"),
    ]


@pytest.mark.parametrize(
    ("slo", "warned"),
    [
        ("{interactive: {ttft_s: 500}}", "ttft_s = 500: is in seconds"),
        ("{interactive: {ttft_s: 1, tpot_s: 50}}", "Write 0.05 if you mean 50 milliseconds"),
        ("{interactive: {ttft_s: 30, tpot_s: 0.5}}", ""),
        ("{batch: {ttft_s: 500}}", ""),
    ],
)
def test_an_objective_in_milliseconds_is_warned_of(slo: str, warned: str) -> None:
    checked = check_text(with_pool(f"slo: {slo}"), check_engine_args=False)
    texts = [warning.text("fleet.yaml") for warning in checked.warnings]
    assert bool(texts) == bool(warned)
    assert warned in "".join(texts)


PEERS = "kv_tiers: {host_bytes: 1Gi, peers: true}"
NO_PEERS = "kv_tiers: {host_bytes: 1Gi}"


@pytest.mark.parametrize(
    ("pool", "to", "other", "complaint"),
    [
        (PEERS, "other", PEERS, ""),
        (PEERS, "othr", PEERS, "pools.engine.prefill.pool = othr: no pool has this name. Did you"),
        (PEERS, "engine", PEERS, "a pool computes its own prompts anyway. Name another pool"),
        (NO_PEERS, "other", PEERS, "the pool engine exchanges no blocks. Set pools.engine.kv_tie"),
        (PEERS, "other", NO_PEERS, "the pool other exchanges no blocks. Set pools.other.kv_tiers"),
        (PEERS, "other", "", "the pool other exchanges no blocks. Set pools.other.kv_tiers.peers"),
        (
            PEERS,
            "other",
            f"{PEERS}\n    prefill: {{pool: engine}}",
            "that pool has its prompts computed elsewhere too. Leave out pools.other.prefill",
        ),
    ],
    ids=["right", "unknown", "itself", "no peers", "no peers there", "no tiers", "a chain"],
)
def test_a_pool_for_prompts_exchanges_blocks_with_the_one_that_answers(
    pool: str, to: str, other: str, complaint: str
) -> None:
    text = with_pool(f"{pool}\nprefill: {{pool: {to}}}")
    text += f"  other:\n    model: embedded\n    served_model_name: other\n    {other}\n"
    if complaint:
        assert complaint in complaint_of(text)
    else:
        assert fleet_of(text).pools["engine"].prefill == PrefillSettings(pool="other")


def test_a_pool_for_prompts_has_the_same_model() -> None:
    other = f"  other:\n    model: org/other\n    {PEERS}\n"
    text = with_pool(f"{PEERS}\nprefill: {{pool: other}}") + other
    assert "that pool has the model org/other. Give both the same model: here it is embedded" in (
        complaint_of(text)
    )
