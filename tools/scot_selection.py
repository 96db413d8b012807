"""SCoT's published selection data as `pipeline train select` reads it:

    python tools/scot_selection.py selection.jsonl MODEL selection.parquet

Each row of the file has an `input`, the question with five drafted thoughts and the option that all are wrong, and a `label`, the numbers
of the right options. The prompt is made anew, to the last token as MODEL is asked in serving.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pipeline.engines.models import resolve
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.export.answers_file import write_rows
from pipeline.graph.load import load_graph
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.store.rows import schema_of
from pipeline.training.examples import SelectionRow, problem_hash, split_of, tokenizer_hash


def selection_rows(published: Sequence[Mapping[str, Any]], builder: PromptBuilder, model: str, validation: float) -> Iterator[SelectionRow]:
    """A row for each of the `published` ones; `validation` is the share of the problems in the split of that name."""
    tokenizer, known = builder.tokenizer, tokenizer_hash(builder.tokenizer)
    for number, row in enumerate(published, 1):
        asked, *reasons = re.split(r"\n\nReason \d+: ", row["input"])
        problem = asked.partition("\n\nQuestion: ")[2].removesuffix("\n\nHere are the reasoning paths:")
        drafts, context = reasons[:-1], builder.generation(problem)  # the last one says that all others are wrong
        options = builder.options("thought", len(drafts), True)
        prompt = builder.choose(context, [tokenizer.encode(each) for each in drafts], unit="thought", problem=problem, begin=len(context))
        places = [place for place in range(len(options.all)) if place != options.none] + [options.none]
        yield SelectionRow(
            split=split_of(problem, validation),
            **{"problem_id": f"scot-{number}", "chain_id": f"scot-{number}#0", "correct": None, "run_id": "published", "graph": "scot"},
            problem_hash=problem_hash(problem),
            **{"step_index": 0, "model": model, "tokenizer": known, "prompt": tokenizer.decode(prompt.ids)},
            input_ids=tuple(map(int, prompt.ids)),
            option_ids=tuple(prompt.option_ids),
            options=options.all,
            right=tuple(places[label - 1] for label in row["label"]),
        )


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--prompts", default="default", show_default=True, help="Prompts file of the graph that is to be served with the adapter.")
@click.option("--validation", default=0.1, show_default=True, help="Share of the problems in the validation split.")
def main(file: Path, model: str, output: Path, prompts: str, validation: float) -> None:
    """Write the published rows of FILE for the tokenizer and chat template of MODEL to OUTPUT."""
    plan = load_graph(Path("scot"), settings=(f"prompts={prompts}",))
    builder = PromptBuilder(HFTokenizer(resolve("model", model)), plan.prompts, model)
    rows = selection_rows([msgspec.json.decode(line) for line in file.read_bytes().splitlines()], builder, model, validation)
    print(f"{output}: {write_rows(output, schema_of(SelectionRow), map(msgspec.to_builtins, rows)):,} rows")


if __name__ == "__main__":
    main()
