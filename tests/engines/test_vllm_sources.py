"""What the engine takes from vLLM is in its sources, those of the installed version and those of every version that is supported."""

import ast
import os
import re
import tomllib
import urllib.error
from collections.abc import Iterator

import pytest

from pipeline.engines.vllm.check import VERSIONS
from pipeline.engines.vllm.spec import SpeculativeSpec
from tests.support.paths import ROOT
from tests.support.vllm_sources import Declared, installed, wheel

CHECKED = ("0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""The newest release of every minor version in the range that is supported."""
USED: dict[str, dict[str, set[str]]] = {
    "vllm/engine/arg_utils.py": {"EngineArgs.create_engine_config": {"usage_context"}, "AsyncEngineArgs": set()},
    "vllm/v1/engine/async_llm.py": {
        "AsyncLLM.from_vllm_config": {"vllm_config", "stat_loggers", "usage_context"},
        "AsyncLLM.generate": {"prompt", "sampling_params", "request_id", "lora_request", "priority"},
        "AsyncLLM.abort": {"request_id"},
        "AsyncLLM.add_lora": {"lora_request"},
        "AsyncLLM.reset_prefix_cache": set(),
        "AsyncLLM.shutdown": set(),
        "AsyncLLM": {"vllm_config", "model_config"},
    },
    "vllm/sampling_params.py": {"RequestOutputKind": {"FINAL_ONLY"}},
    "vllm/outputs.py": {
        "RequestOutput": {"prompt_token_ids", "prompt_logprobs", "outputs", "metrics", "num_cached_tokens"},
        "CompletionOutput": {"index", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason"},
    },
    "vllm/logprobs.py": {"Logprob": {"logprob"}},
    "vllm/inputs/engine.py": {"TokensInput": {"type", "prompt_token_ids"}},
    "vllm/lora/request.py": {"LoRARequest": {"lora_name", "lora_int_id", "lora_path"}},
    "vllm/usage/usage_lib.py": {"UsageContext": {"OPENAI_API_SERVER"}},
    "vllm/v1/metrics/loggers.py": {"StatLoggerBase.record": {"scheduler_stats", "iteration_stats"}},
    "vllm/v1/metrics/stats.py": {
        "SchedulerStats": {"num_running_reqs", "num_waiting_reqs", "kv_cache_usage", "spec_decoding_stats"},
        "IterationStats": {"num_generation_tokens"},
        "RequestStateStats": {"queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"},
    },
    "vllm/v1/spec_decode/metrics.py": {
        "SpecDecodingStats": {"num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"}
    },
    "vllm/config/cache.py": {"CacheConfig": {"block_size", "num_gpu_blocks", "kv_cache_size_tokens"}},
    "vllm/config/scheduler.py": {"SchedulerConfig": {"max_num_batched_tokens"}},
    "vllm/config/model.py": {"ModelConfig": {"max_model_len", "dtype", "get_vocab_size"}},
    "vllm/config/parallel.py": {"ParallelConfig": {"distributed_executor_backend"}},
    "vllm/config/vllm.py": {"VllmConfig": {"model_config", "cache_config", "scheduler_config", "parallel_config", "use_v2_model_runner"}},
    "vllm/config/speculative.py": {"SpeculativeConfig": set(SpeculativeSpec.__struct_fields__)},
    "vllm/v1/engine/exceptions.py": {"EngineDeadError": set(), "EngineGenerateError": set()},
    "vllm/platforms/interface.py": {"Platform": {"is_cpu", "get_device_name"}},
}
"""What the worker uses, by file: the parameters of functions and the members of classes. What `AsyncEngineArgs` and `SamplingParams` are
given is read from `terms`."""
UNDERSTOOD = {
    *("CancelledError", "GeneratorExit", "EngineDeadError", "Exception", "InputStreamError"),
    *("ValueError", "VLLMClientError", "GracefulHTTPError", "GenerationError"),
}
"""The errors that `AsyncLLM.generate` tells apart: of one request that is flawed, of one that may be sent again, and the engine's death."""
OPTIONAL = {"logprob_token_ids"}
"""What `terms` looks up in the installed version before it is said."""


def said(*functions: str) -> set[str]:
    """The keys of the dicts that these functions of `terms` write."""
    module = ast.parse((ROOT / "pipeline/engines/vllm/terms.py").read_text())
    bodies = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name in functions]
    assert len(bodies) == len(functions)
    keys = (key for body in bodies for node in ast.walk(body) if isinstance(node, ast.Dict) for key in node.keys)
    return {key.value for key in keys if isinstance(key, ast.Constant)}


def literals(node: ast.expr) -> tuple[object, ...]:
    found: tuple[object, ...] = ast.literal_eval(node.slice if isinstance(node, ast.Subscript) else node)
    return found


def caught(function: ast.AST | None) -> set[str]:
    """The names of the errors that a function handles apart."""
    assert function is not None
    types = [node.type for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.type is not None]
    names = {name for kind in types for name in ast.walk(kind) if isinstance(name, ast.Name | ast.Attribute)}
    return {name.id if isinstance(name, ast.Name) else name.attr for name in names} - {"asyncio"}


def flaws(declared: Declared) -> Iterator[str]:
    """What the worker needs of vLLM and these sources do not have, or have otherwise."""
    terms = {
        "vllm/engine/arg_utils.py": {"EngineArgs": said("arguments", "_on_cpu")},
        "vllm/sampling_params.py": {"SamplingParams": said("_first_params", "_options", "_scoring") - OPTIONAL},
    }
    for table in (USED, terms):
        for path, names in table.items():
            for name, wanted in names.items():
                there = declared.has(path, name)
                if there is None or not wanted <= there:
                    yield f"{path} has no {name}" if there is None else f"{name} in {path} has no {', '.join(sorted(wanted - there))}"
    if lacking := {"VLLM_BATCH_INVARIANT", "VLLM_USE_V2_MODEL_RUNNER"} - declared.top("vllm/envs.py"):
        yield f"vllm/envs.py has no {lacking}"
    if unknown := caught(declared.node("vllm/v1/engine/async_llm.py", "AsyncLLM.generate")) - UNDERSTOOD:
        yield f"AsyncLLM.generate tells {', '.join(sorted(unknown))} apart"
    reasons = literals(declared.value("vllm/v1/engine/__init__.py", "FINISH_REASON_STRINGS"))
    if reasons != ("stop", "length", "abort", "error", "repetition"):
        yield f"a candidate ends with one of {reasons}"
    abstract = declared.node("vllm/v1/metrics/loggers.py", "StatLoggerBase")
    methods = [each for each in getattr(abstract, "body", []) if isinstance(each, ast.FunctionDef)]
    marked = {each.name for each in methods if "abstractmethod" in map(ast.unparse, each.decorator_list)}
    if more := marked - {"__init__", "record", "log_engine_initialized"}:
        yield f"a stat logger must have {', '.join(sorted(more))}"


@pytest.mark.slow
def test_the_installed_vllm_has_what_the_worker_uses() -> None:
    read = installed()
    if read is None:
        pytest.skip("vllm is not installed here")
    assert list(flaws(Declared(read))) == []


@pytest.mark.network
@pytest.mark.skipif("NETWORK" not in os.environ, reason="NETWORK=1 reads vLLM's wheels from the package index")
@pytest.mark.parametrize("version", CHECKED)
def test_every_supported_vllm_has_what_the_worker_uses(version: str) -> None:
    try:
        read = wheel("vllm", version)
    except (OSError, urllib.error.URLError) as error:
        pytest.skip(f"the wheel cannot be read: {error}")
    assert list(flaws(Declared(read))) == []


def test_the_supported_range_is_what_is_checked() -> None:
    minors = [tuple(map(int, version.split(".")[:2])) for version in CHECKED]
    assert minors == [(0, minor) for minor in range(VERSIONS[0][1], VERSIONS[1][1])]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [project["optional-dependencies"]["vllm"][0], re.search(r"vllm>=[^,]*\$\(comma\)<[^,]*", (ROOT / "Makefile").read_text())[0]]  # type: ignore[index]
    low, high = (".".join(map(str, version)) for version in VERSIONS)
    assert [each.replace("$(comma)", ",") for each in asked] == [f"vllm>={low},<{high}"] * 2
