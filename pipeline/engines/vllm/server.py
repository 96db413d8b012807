"""One `AsyncLLM` in a worker process: requests from the socket are passed on to it, and what becomes of them is sent back."""

import asyncio
import gc
import os
import time
import traceback
from importlib import import_module
from typing import Any

import torch
from vllm import __version__, envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from pipeline.engine import Fact, Request, Speculation, added
from pipeline.engines.meter import UsageMeter
from pipeline.engines.models import adapter_folder, load_tokenizer
from pipeline.engines.process.wire import Abort, Failed, Ready, Report, ResetPrefixCache, Setup, Submit
from pipeline.engines.process.worker import REPORT_EVERY_S, ParentConnection
from pipeline.engines.vllm import terms
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.system.worker_process import end_with_parent

_RESET_AGAIN_S = 0.02
"""How soon again vLLM is asked to empty its prefix cache: with asynchronous scheduling the blocks of an answered request are freed an
iteration later, and until then it keeps all."""


class Reporter(StatLoggerBase):
    """Counts requests and iterations, and reports them to the main process; `record` is called as a stat logger of vLLM."""

    def __init__(self, connection: ParentConnection, *, speculates: bool) -> None:
        self._connection = connection
        self.meter = UsageMeter(lambda: self._last_s)
        """Busy from the arrival at an idle engine to the last iteration: an engine that hangs is not busy."""
        self._last_s = self._reported_s = 0.0
        self._written = 0
        self._speculation = Speculation(drafts=0, draft_tokens=0, accepted_tokens=0, accepted_by_position=()) if speculates else None

    def log_engine_initialized(self) -> None:
        """There is nothing to log."""

    def begin(self) -> None:
        """Count the arrival of a request."""
        if not self.meter.open_calls:
            self._last_s = time.monotonic()
        self.meter.begin()

    def record(self, scheduler_stats: Any, iteration_stats: Any, *rest: Any, **more: Any) -> None:
        """Take the statistics of one iteration, with the signature that vLLM calls."""
        if scheduler_stats is None:
            return
        self._last_s = time.monotonic()
        self._written += iteration_stats.num_generation_tokens if iteration_stats else 0
        if (counts := scheduler_stats.spec_decoding_stats) is not None:
            new = Speculation(
                drafts=counts.num_drafts,
                draft_tokens=counts.num_draft_tokens,
                accepted_tokens=counts.num_accepted_tokens,
                accepted_by_position=tuple(counts.num_accepted_tokens_per_pos),
            )
            self._speculation = added(self._speculation, new)
        if self.meter.open_calls and self._last_s - self._reported_s >= REPORT_EVERY_S:
            self.report()

    def report(self, **answer: list[Any]) -> None:
        """Send the statistics, and what became of a request."""
        self._reported_s = time.monotonic()
        self._connection.send(Report(self.meter.statistics(written_tokens=self._written, speculation=self._speculation), **answer))


class VllmServer:
    """Passes requests on to an `AsyncLLM`, and completions back."""

    def __init__(self, engine: AsyncLLM, spec: VllmSpec, model: str, reporter: Reporter) -> None:
        self._engine, self._reporter, self._decode = engine, reporter, load_tokenizer(model, spec).decode
        adapters = enumerate(spec.adapters.items(), 1)
        self.adapters = {name: LoRARequest(name, number, str(adapter_folder(path))) for number, (name, path) in adapters}
        self._speculates = spec.speculative_config is not None
        self.max_model_len = int(engine.model_config.max_model_len)
        self.vocab_size = int(engine.model_config.get_vocab_size())
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._reset: asyncio.Task[None] | None = None
        """The last reset of the prefix cache, for which later requests wait."""

    async def serve(self, connection: ParentConnection) -> None:
        """Serve requests until the main process closes the socket."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:

            def take() -> None:
                for message in connection.receive(wait=True):
                    if isinstance(message, Submit):
                        self._reporter.begin()
                        self._calls[message.number] = tasks.create_task(self._answer(message.number, message.request))
                    elif isinstance(message, Abort) and message.number in self._calls:
                        self._calls[message.number].cancel()
                    elif isinstance(message, ResetPrefixCache):
                        self._reset = tasks.create_task(self._reset_prefix_cache())
                if connection.closed:
                    loop.remove_reader(connection.socket)
                    closed.set()

            loop.add_reader(connection.socket, take)
            await closed.wait()
            for call in self._calls.values():
                call.cancel()

    async def _answer(self, number: int, request: Request) -> None:
        """Have a request computed and report what became of it. Only the death of the engine is raised."""
        outputs, answer = None, dict[str, list[Any]]()
        try:
            if self._reset is not None:
                await asyncio.wait([self._reset])
            params = enumerate(terms.sampling_params(request, self.max_model_len, speculates=self._speculates))
            # vLLM aborts them all if this task is cancelled.
            outputs = await asyncio.gather(*(self._output(f"{number}-{index}", request, each) for index, each in params))
            completion = terms.completion(request, outputs, self._decode)
            self._reporter.meter.count(completion.usage)
            answer = {"done": [(number, completion)]}
        except EngineDeadError:
            raise
        except Exception as error:
            refused = outputs is None and isinstance(error, terms.REFUSALS)
            why = terms.first_line(error) if outputs is None else f"vLLM's output cannot be read: {error!r}"
            answer = {"failed": [(number, f"request {request.request_id!r}: {why}", not refused)]}
        finally:
            del self._calls[number]
            self._reporter.meter.end()
            self._reporter.report(**answer)

    async def _reset_prefix_cache(self) -> None:
        while not await self._engine.reset_prefix_cache():  # noqa: ASYNC110 - vLLM tells nobody
            await asyncio.sleep(_RESET_AGAIN_S)

    async def _output(self, request_id: str, request: Request, params: Any) -> Any:
        """vLLM's final output for one candidate."""
        # In the form that vLLM's renderer leaves: nothing is left for another thread.
        prompt = {"type": "token", "prompt_token_ids": [*request.prompt_ids]}
        adapter = self.adapters.get(request.adapter or "")
        last = None
        async for output in self._engine.generate(prompt, params, request_id=request_id, lora_request=adapter, priority=request.priority):
            last = output
        return last


def expand(output: Any, values: Any, cumulative_counts: Any, replace_from: Any, replace_to: Any, *_: Any, **__: Any) -> None:
    """Repeat each of `values` (batch) in `output` (tokens) for each token of that sequence, with `replace_to` for `replace_from`;
    `cumulative_counts` (batch) are running sums of the sequences' tokens.

    vLLM 0.32's own kernel for the CPU converts temperatures and top-p to integers: every token sampled under speculation has an arbitrary
    temperature there.
    """
    counts = torch.diff(cumulative_counts.to(torch.int64), prepend=torch.zeros(1, dtype=torch.int64))
    spread = torch.where(values == replace_from, torch.as_tensor(replace_to, dtype=values.dtype), values).repeat_interleave(counts)
    output[: len(spread)] = spread


def load(setup: Setup, spec: VllmSpec, reporter: Reporter) -> AsyncLLM:
    """Start vLLM with the model of `setup`; raises what vLLM raises.

    One thread on one core needs none of the processes that vLLM's CPU build starts beside this one, each of which imports everything again:
    a fork of this process, which has imported everything, schedules and computes.
    """
    on_cpu, usage = current_platform.is_cpu(), UsageContext.OPENAI_API_SERVER  # requests come one by one: vLLM chooses what goes together
    args = AsyncEngineArgs(**terms.arguments(setup.role, spec, setup.model, on_cpu=on_cpu))
    config = args.create_engine_config(usage)  # imports more
    gc.freeze()
    gc.enable()
    if on_cpu and spec.threads == spec.args.get("tensor_parallel_size", 1) == 1:
        config.parallel_config.distributed_executor_backend = "uni"
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if setup.cores:
            os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, setup.cores))
        vars(import_module("vllm.utils.cpu_triton_utils"))["_expand_kernel_impl"] = expand
    elif on_cpu and spec.speculative_config is not None:
        raise ValueError("on the CPU it speculates with one thread alone; set `threads` to 1")
    return AsyncLLM.from_vllm_config(config, usage_context=usage, stat_loggers=[lambda *_: reporter])


def facts(engine: AsyncLLM, setup: Setup, spec: VllmSpec) -> dict[str, Fact]:
    """Also vLLM's version and what it chose by itself."""
    config, scheduler, cache = engine.vllm_config, engine.vllm_config.scheduler_config, engine.vllm_config.cache_config
    device, on_cpu = str(current_platform.get_device_name()), current_platform.is_cpu()
    gpus: dict[str, Fact] = {"devices": tuple(f"GPU {gpu}" for gpu in spec.gpus), "device_model": device, "accelerators": len(spec.gpus)}
    # It crashes vLLM 0.32, whose rejection sampler looks for the largest k of no sequence.
    top_k = ("top_k",) if on_cpu and spec.speculative_config is not None else ()
    return {
        "answers": "model",
        **(setup.core_facts(spec.threads) if on_cpu else gpus),
        "vllm": __version__,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "kv_cache_tokens": cache.kv_cache_size_tokens,
        "block_size": getattr(cache, "effective_attention_block_size", None) or cache.block_size,  # the first since 0.31
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "model_runner": "V2" if config.use_v2_model_runner else "V1",
        "batch_invariant": bool(envs.VLLM_BATCH_INVARIANT),
        "cannot": spec.cannot + top_k,
    }


async def work(connection: ParentConnection, setup: Setup) -> None:
    """Load the model, answer requests until the socket closes, and shut vLLM down."""
    # In processes that vLLM forks the socket would outlive this one, and they would, too.
    os.register_at_fork(after_in_child=connection.socket.close)
    os.register_at_fork(after_in_child=end_with_parent)
    spec = setup.spec_as(VllmSpec)
    reporter = Reporter(connection, speculates=spec.speculative_config is not None)
    try:
        engine = load(setup, spec, reporter)
        server = VllmServer(engine, spec, setup.model, reporter)
        for adapter in server.adapters.values():  # one that vLLM refuses keeps the engine from starting
            await engine.add_lora(adapter)
    except Exception as error:
        if "root cause" in str(error):  # which one of vLLM's processes has printed
            raise
        traceback.print_exc()
        return connection.send(Failed(terms.first_line(error)))
    connection.send(Ready(server.max_model_len, server.vocab_size, facts(engine, setup, spec)))
    try:
        await server.serve(connection)
    finally:
        engine.shutdown()
