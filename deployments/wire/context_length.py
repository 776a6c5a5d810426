"""The `param` of an engine's error for a request that does not fit the model's context.

The first two are vLLM's words, which name no field of any API: `TokenizeParams` in
vllm/renderers/params.py of vLLM 0.32.
"""

PROMPT_TOO_LONG, TEXT_TOO_LONG = "input_tokens", "input_text"
# Antefix's: the prompt fits, but not with `max_tokens` in addition.
ANSWER_TOO_LONG = "input_tokens_and_max_tokens"
