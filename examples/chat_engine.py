"""An engine over a server that offers chat completions only, for graphs of whole thoughts: target, scot, best-of-n, self-consistency.

CHAT_KEY=... python examples/chat_engine.py http://127.0.0.1:8000/v1 MODEL
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp

import pipeline
from pipeline.engine import EngineStatistics
from pipeline.engines.sim.tokenizer import ASSISTANT, END, USER, VOCAB_SIZE, SimTokenizer
from pipeline.errors import BadCompletion, EngineUnavailable, RequestRefused

ANSWER = "Now give the final answer, and nothing else, within \\boxed{}."
CHOICE = "\n\nAnswer with nothing but one of: {}."
THINKING = 2048  # tokens for the reasoning of a model before it names an option, or writes an answer
NEVER = -1e9  # the log probability of an option that the reply does not name


class Chat:
    """One model of a server; a request is one POST. The text of a reply is a thought or an answer, or it names an option."""

    def __init__(self, role: str, base_url: str, model: str, key: str | None = None, max_model_len: int = 32768) -> None:
        self.facts = {"cannot": ("continues", "probabilities", "logprobs", "top_k", "min_p")}
        self.role, self.model, self.max_model_len, self.vocab_size = role, model, max_model_len, VOCAB_SIZE
        self.tokenizer, self.requests = SimTokenizer(), 0  # the server's is unknown: a word counts as a token, turns have marks
        self.close = self.tokenizer.special_ids["</think>"]
        self.url, self.headers = f"{base_url}/chat/completions", {"Authorization": f"Bearer {key}"} if key else {}

    async def generate(self, request: pipeline.Request) -> pipeline.Completion:
        messages, begun = self.messages(request.prompt_ids)
        options, thinks = [self.tokenizer.decode([each]) for each in request.option_ids], self.close not in begun and not request.option_ids
        if thinks and self.text(begun):
            raise RequestRefused("a server with chat completions only cannot continue a thought")
        if options:
            messages[-1]["content"] += CHOICE.format(", ".join(options))
        elif not thinks:
            messages += [{"role": "assistant", "content": self.text(begun)}, {"role": "user", "content": ANSWER}]
        body = {"model": self.model, "messages": messages, "n": request.n, "max_tokens": request.max_tokens + THINKING * (not thinks)}
        body |= {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed % (1 << 31)}
        try:
            choices, logprobs = json.loads(await self.post(body))["choices"], ()
            if options:
                named = re.findall(rf"(?<![\w.])(?:{'|'.join(map(re.escape, options))})(?!\w|\.\d)", choices[0]["message"]["content"])
                place = options.index(named[-1])
                logprobs = tuple(0.0 if each == place else NEVER for each in range(len(options)))
                candidates = [self.candidate([request.option_ids[place]], "length")]
            else:
                candidates = [self.written(request, each["message"], each["finish_reason"], thinks) for each in choices]
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise BadCompletion(self.role, request.request_id, f"no chat completion, or one that names no option: {error!r}") from None
        self.requests += 1
        usage = pipeline.Usage(input_tokens=len(request.prompt_ids), output_tokens=sum(len(each.ids) for each in candidates))
        return pipeline.Completion(candidates=tuple(candidates), option_logprobs=logprobs, usage=usage)

    async def post(self, body: dict[str, Any]) -> str:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        try:  # every run has an event loop: no connection outlives its request
            async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as session, session.post(self.url, json=body) as reply:
                text = await reply.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineUnavailable(self.role, f"at {self.url} cannot be reached: {error}") from None
        if reply.status == 429 or reply.status >= 500:
            raise EngineUnavailable(self.role, f"at {self.url} answered {reply.status}: {text[:200]}")
        if reply.status != 200:  # some servers repeat a key that they reject
            raise RequestRefused(f"the server answered {reply.status}" + (f": {text[:200]}" if reply.status != 401 else ""))
        return text

    def messages(self, ids: Sequence[int]) -> tuple[list[dict[str, str]], list[int]]:
        """The turns of a prompt, and the turn that the assistant has begun. The first of two turns of the user is the system's."""
        special, turns = self.tokenizer.special_ids, list[tuple[str, list[int]]]()
        roles = {special[USER]: "user", special[ASSISTANT]: "assistant"}
        for each in ids:
            if each in roles:
                turns.append((roles[each], []))
            elif each not in (special[END], special["<think>"]):
                turns[-1][1].append(each)
        found = [{"role": role, "content": self.text(held)} for role, held in turns[:-1]]
        if [each["role"] for each in found[:2]] == ["user", "user"]:
            found[0]["role"] = "system"
        return found, turns[-1][1]

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([each for each in ids if each != self.close]).strip()

    def written(self, request: pipeline.Request, message: dict[str, Any], finish: Any, thinks: bool) -> pipeline.Candidate:
        """An answer, or a thought that is closed and followed by the answer. A model that shows no thought thinks in its answer."""
        shown, content = message.get("reasoning_content") or "", message.get("content") or ""
        thought, answer = (self.tokenizer.encode_parts(["", each.strip() + "\n"]) for each in (shown or content, content))
        if not thinks or (finish == "length" and not (shown and content)):
            return self.candidate((thought if thinks else answer)[: request.max_tokens], finish)
        stop = self.close if self.close in request.stop_ids else None
        rest = [self.close, *(answer if stop is None else ())]
        return self.candidate([*thought[: max(0, request.max_tokens - len(rest))], *rest][: request.max_tokens], finish, stop)

    def candidate(self, ids: Sequence[int], finish: Any, stop: int | None = None) -> pipeline.Candidate:
        text = self.tokenizer.decode(ids)
        return pipeline.Candidate(ids=tuple(ids), text=text, cumulative_logprob=None, finish_reason=finish, stop_reason=stop)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(requests=self.requests)

    async def aclose(self) -> None:
        """Nothing is open between requests."""


if __name__ == "__main__":
    engines = {role: Chat(role, *sys.argv[1:3], key=os.environ.get("CHAT_KEY")) for role in ("draft", "target")}
    result = pipeline.solve("scot", [{"problem": "What is 17 * 23?", "answer": "391"}], engines=engines)
    print(f"{result.accuracy:.0%} right")
