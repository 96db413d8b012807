"""What people who come from vLLM, lm_eval, inspect or OpenAI call an option: an unknown one enters, what to give here leaves."""

from collections.abc import Collection

_SYNONYMS = {
    "--input FILE": "data dataset dataset-name dataset-path data-path input-file file task tasks benchmark",
    "--output DIR": "out output-dir output-path save-dir log-dir results",
    "--limit N": "num-prompts num-problems max-problems num-examples",
    "--samples K, or --limit N for problems": "num-samples n-samples",
    "--samples K": "n k epochs num-return-sequences",
    "--batch-size N": "max-connections concurrency max-concurrency num-concurrent max-num-seqs max-samples max-workers num-workers",
    "--model target=NAME": "model-name model-path target target-model base-model large-model",
    "--model draft=NAME": "draft draft-model speculative-model assistant-model small-model",
    "--model ROLE=http://HOST:PORT/v1#NAME": "base-url api-base model-base-url endpoint server url",
    "--set engines.ROLE.args.tensor_parallel_size=N": "tensor-parallel-size tp tp-size",
    "--set engines.ROLE.args.gpu_memory_utilization=SHARE": "gpu-memory-utilization",
    "--set engines.ROLE.args.max_model_len=N": "max-model-len max-length context-length",
    "--set engines.ROLE.api_key_env=VARIABLE": "api-key",
    "--set engines.ROLE.timeout_s=SECONDS": "timeout request-timeout",
    "--set engines.ROLE.args.NAME=VALUE": "model-args dtype quantization",
    "--set engines.ROLE.NAME=VALUE": "max-retries trust-remote-code device",
    "--set token_budget=N": "max-tokens max-new-tokens max-completion-tokens max-gen-toks max-thinking-tokens reasoning-tokens",
    "--set prompts=FILE": "system-prompt prompt-template prompts",
    "--set NAME=VALUE": "gen-kwargs generation-config",
} | {f"--set {name.replace('-', '_')}=VALUE": name for name in ("temperature", "top-p", "top-k", "min-p", "candidates", "threshold")}
_MEANT = {name: meant for meant, names in _SYNONYMS.items() for name in names.split()}


def meant(name: str, known: Collection[str]) -> str | None:
    """The option, of the `known` ones of a command, with a value where it needs one, that does what `name` does elsewhere."""
    found = _MEANT.get(name.strip("-").replace("_", "-"))
    return found if found is not None and found.split()[0] in known else None
