"""Tokenizers and chat templates of published models, made small: their special tokens with their flags, and the rules of their templates.

The vocabularies are trained on a few sentences. Token flags and templates follow what the models' files on the hub say, without their tools
and default system messages; `normalized` and the flags that take up white space are covered by models of their own.
"""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from pipeline.engines.tokenizer import HFTokenizer
from tests.support.paths import ROOT

SENTENCES = [
    "Tom has 3 pens and buys 2. How many pens does he have? <|im_start|>user says <think> so </think> and [INST] that [/INST]",
    "Please reason step by step, and put your final answer within \\boxed{}.\n\nSo the answer is 5.\n\nuser assistant end start begin text",
    "Candidates for the next step of your reasoning: Which candidate is right? Best candidate: Score: [1] [2] | > < <| |> </s> <s>",
]
R1_BOS, R1_EOS, R1_USER, R1_SAYS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"  # noqa: RUF001 - as published
THINK = ("<think>", "</think>")
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '" + R1_USER + "' + m['content'] }}{% endif %}"
    "{% if m['role'] == 'assistant' %}{% set content = m['content'] %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}{{ '" + R1_SAYS + "' + content + '" + R1_EOS + "' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '" + R1_SAYS + "<think>\\n' }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{% if m.role in ('system', 'user') %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}"
    "{% elif m.role == 'assistant' %}{% set content = m.content %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\nOPENED' }}{% endif %}"
)
NOT_THINKING = "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)


class ChatModel(NamedTuple):
    """What is written down of one published model."""

    template: str
    special: tuple[str, ...]
    """Added tokens that its file marks as special, the beginning and the end of a sequence first."""
    added: tuple[str, ...] = ()
    """Added tokens that it does not."""
    words: tuple[str, ...] = ()
    """Added tokens that are words like others."""
    kind: str = "bytes"
    """`bytes`: byte-level BPE; `whole words`: with its words as they are; `folded`: NFKC, in lower case, and control tokens that are looked
    for after that."""
    flags: tuple[tuple[str, bool], ...] = ()
    """Flags of the special tokens."""


QWEN = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TOOLS = ("<tool_call>", "</tool_call>", "<|fim_prefix|>")
MODELS = {
    "r1-distill-qwen": ChatModel(R1, (R1_BOS, R1_EOS, "<|quad_start|>"), (R1_USER, R1_SAYS, "<|EOT|>", *THINK, *TOOLS)),
    "r1-distill-llama": ChatModel(R1, (R1_BOS, R1_EOS, "<|eot_id|>"), (R1_USER, R1_SAYS, *THINK), kind="whole words"),
    "qwq": ChatModel(CHATML.replace("OPENED", "<think>\\n"), QWEN, (*THINK, *TOOLS)),
    "qwen3": ChatModel(CHATML.replace("OPENED", "' }}" + NOT_THINKING + "{{ '"), QWEN, (*THINK, *TOOLS)),
    "llama-3": ChatModel(
        LLAMA3,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
        kind="whole words",
    ),
    "folded": ChatModel(
        CHATML.replace("OPENED", "<think>\\n"), QWEN, THINK, ("\n\n", "pens"), "folded", (("normalized", True), ("rstrip", True))
    ),
}
"""Published models by name; `folded` is none, but the hardest case that tokenizers allow."""
BUNDLED = tuple(sorted(path.parent.name for path in (ROOT / "pipeline/models").glob("*/config.json")))
"""The models that come with the package."""


@cache
def chat_model(name: str) -> HFTokenizer:
    """The tokenizer of one of `MODELS` or `BUNDLED`."""
    return HFTokenizer(str(ROOT / "pipeline/models" / name) if name in BUNDLED else str(folder_of(name)))


def with_template(folder: Path, model: str, template: str) -> HFTokenizer:
    """The tokenizer of one of `MODELS` or `BUNDLED` with another template, written to `folder`."""
    source = ROOT / "pipeline/models" / model if model in BUNDLED else folder_of(model)
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    config = json.loads((source / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return HFTokenizer(str(folder))


@cache
def folder_of(name: str) -> Path:
    """A folder with the tokenizer files of one of `MODELS`."""
    folder, model = Path(mkdtemp(prefix=f"{name}-")), MODELS[name]
    tokenizer = _tokenizer(model)
    flags: dict[str, Any] = dict(model.flags)
    tokenizer.add_special_tokens([AddedToken(text, special=True, **{"normalized": False, **flags}) for text in model.special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=bool(flags.get("normalized"))) for text in model.added + model.words])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_config(folder, model.template, bos_token=model.special[0], eos_token=model.special[1])
    return folder


def write_config(folder: Path, template: str, **tokens: str) -> None:
    """The tokenizer's settings, its chat template among them."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "chat_template": template, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _tokenizer(model: ChatModel) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=model.kind == "whole words"))
    split = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.NFC()
    if model.kind == "folded":
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer
