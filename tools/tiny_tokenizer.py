"""The tokenizer of the bundled models: a word for a token, and bytes for everything else.

A byte-level BPE without merges that takes a whole word when the vocabulary has it (`ignore_merges`, as in Llama 3), so
any UTF-8 text is encoded and decoded back exactly. The fixed wordings of `pipeline.reasoning.prompts` are one token each: a
model of a million parameters need not read them.
"""

import json
from pathlib import Path

from make_arith import GAINS, ITEMS, LOSSES, NAMES
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.graph.prompts import DELIMITER, LABELS, WORDINGS

SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<think>", "</think>")
CONTEXT = 4096
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{%- else -%}{{ '<|user|>' + message['content'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|><think>\n' }}{%- endif -%}"
)


def build() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = "\u0120"  # how byte-level vocabularies write a leading blank
    begins = [*NAMES, "Then"]
    inner = [*NAMES, *ITEMS, *GAINS, *LOSSES, "How", "has", "many", "now", "packs", "of", "so", "+", "-", "*", "="]
    numbers = [str(i) for i in range(100)]
    tokens = dict.fromkeys([*letters, *begins, *numbers, *(space + word for word in [*inner, *numbers])])
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    pieces = [DELIMITER, "\\boxed{", *WORDINGS, *(f"[{label}] " for label in LABELS[1:10])]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in pieces])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>", clean_up_tokenization_spaces=False, model_max_length=CONTEXT
    )
    fast.chat_template = TEMPLATE
    return fast


def save(folder: Path) -> PreTrainedTokenizerFast:
    """Build it and write it next to a model, in files that transformers 4 and 5 read alike: template and class name inside."""
    tokenizer = build()
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer
