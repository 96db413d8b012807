"""Prompts of the papers' code over the templates of R1 and QwQ, and every form that a graph can ask for, against hand-written ones."""

from typing import Any, NamedTuple

import pytest

from pipeline.errors import GraphError
from pipeline.graph.files import read_file
from pipeline.graph.load import decode_file
from pipeline.graph.prompts import ChoosePrompt, Marks, Prompts, ScorePrompt
from pipeline.reasoning.prompts import OptionPrompt, PromptBuilder
from tests.support.chat_models import R1_BOS, R1_EOS, R1_SAYS, R1_USER, chat_model


class Chat(NamedTuple):
    """How a model's template writes turns."""

    model: str
    begin: str
    user: str
    user_ends: str
    says: str
    ends: str


R1 = Chat("r1-distill-qwen", R1_BOS, R1_USER, "", R1_SAYS, R1_EOS)
QWQ = Chat("qwq", "", "<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n", "<|im_end|>\n")
CHATS = [R1, QWQ]

SPECREASON_PROBLEM = (
    "\n        Solve the following math problem efficiently and clearly. Please reason step by step, \n"
    "        separate logical reasoning steps with two newline characters (\n\n), and put your final answer within \\boxed{}.\n"
    "        Problem: Tom has 3 pens. How many?\n        "
)
SPECREASON_QUESTION = (
    "Evaluate the last reasoning step solely based on factual correctness and logical validity. Ignore style, phrasing, or overall "
    "usefulness—only judge whether the step is objectively correct and logically follows from prior steps. Assign a score from 0 to 9."
)
SCOT_BEFORE = (
    "I will provide several Reasons for the Question. Please choose the best reasoning path and give the serial Number directly (you can "
    "only choose one). \n\nQuestion: Tom has 3 pens. How many?\n\nHere are the reasoning paths:\n\n"
)
PROBLEM = "Tom has 3 pens. How many?"


def builder_of(chat: Chat, prompts: Prompts | str) -> PromptBuilder:
    found = decode_file(read_file(prompts, "prompts file"), Prompts) if isinstance(prompts, str) else prompts
    return PromptBuilder(chat_model(chat.model), found)


def encoded(builder: PromptBuilder, *texts: str) -> list[int]:
    """The ids of texts that are encoded one by one."""
    return [id_ for text in texts for id_ in builder.tokenizer.encode(text)]


def judged(prompt: OptionPrompt, builder: PromptBuilder) -> list[str]:
    return [builder.tokenizer.decode(prompt.ids[start:end]) for start, end in prompt.judged]


def options(prompt: OptionPrompt, builder: PromptBuilder) -> list[str]:
    return [builder.tokenizer.decode([id_]) for id_ in prompt.option_ids]


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.model)
def test_specreason_s_problem_and_question_are_those_of_its_code(chat: Chat) -> None:
    builder = builder_of(chat, "specreason")
    asked = f"{chat.begin}{chat.user}{SPECREASON_PROBLEM}{chat.user_ends}{chat.says}<think>\n"
    begun = builder.generation(PROBLEM)
    assert begun == encoded(builder, asked)
    step, candidate = encoded(builder, "Tom has 3.\n\n"), encoded(builder, "So 3.\n\n")
    prompt = builder.score([*begun, *step], candidate, problem=PROBLEM, begin=len(begun))
    question = f"{chat.ends}{chat.user}{SPECREASON_QUESTION}{chat.user_ends}{chat.says}<think>I think the quality score is: "
    assert list(prompt.ids) == [*begun, *step, *candidate, *encoded(builder, question)]
    assert options(prompt, builder) == list("0123456789")
    assert judged(prompt, builder) == ["So 3.\n\n"]


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.model)
def test_scot_s_selection_is_a_chat_of_its_own_with_none_as_the_last_path(chat: Chat) -> None:
    builder = builder_of(chat, "scot")
    begun = builder.generation(PROBLEM)
    assert begun == encoded(builder, f"{chat.begin}{chat.user}{PROBLEM}{chat.user_ends}{chat.says}<think>\n")
    thoughts = [encoded(builder, text) for text in ("Tom has 3.\n\nSo 3.\n", "Tom has 5 and")]
    prompt = builder.choose(begun, thoughts, unit="thought", problem=PROBLEM, begin=len(begun))
    none = f"Reason 3: All reasoning paths above are wrong.\n\n{chat.user_ends}{chat.says}Number of the best reasoning path: "
    pieces = [
        f"{chat.begin}{chat.user}{SCOT_BEFORE}",
        "Reason 1: ",
        "Tom has 3.\n\nSo 3.",
        "\n\n",
        "Reason 2: ",
        "Tom has 5 and",
        "\n\n",
        none,
    ]
    assert list(prompt.ids) == encoded(builder, *pieces)
    assert options(prompt, builder) == ["1", "2", "3"]
    assert judged(prompt, builder) == ["Tom has 3.\n\nSo 3.", "Tom has 5 and", ""]
    alone = builder.choose(begun, thoughts, unit="thought", reject=False, problem=PROBLEM, begin=len(begun))
    assert options(alone, builder) == ["1", "2"]
    assert "All reasoning paths" not in builder.tokenizer.decode(alone.ids)


def test_scot_s_published_adapter_is_asked_as_its_code_asks_it() -> None:
    """Its tokenizer adds the first token; no user tag stands before the question, the assistant's does behind it."""
    builder = builder_of(R1, "scot-adapter")
    begun = builder.generation(PROBLEM)
    assert begun == encoded(builder, f"{R1_BOS}{R1_USER}{PROBLEM}{R1_SAYS}<think>\n"), "only the choice is asked so"
    prompt = builder.choose(begun, [encoded(builder, "So 3.\n")], unit="thought", problem=PROBLEM, begin=len(begun))
    none = f"Reason 2: All reasoning paths above are wrong.\n\n{R1_SAYS}Number of the best reasoning path: "
    assert list(prompt.ids) == encoded(builder, f"{R1_BOS}{SCOT_BEFORE}", "Reason 1: ", "So 3.", "\n\n", none)
    assert builder.flaw(builder.prompts.choose_thought, ("1", "2")) is None
    other = builder_of(QWQ, "scot-adapter")
    assert other.flaw(other.prompts.choose_thought, ("1", "2")) == (
        f"its engine's chat template has no {R1_USER!r} right before the turn, which its prompt omits; leave out `omit`"
    )


@pytest.mark.parametrize(("how", "opened"), [("plain", ""), ("in_thought", "<think>"), ("after_thought", "<think>\n\n</think>\n\n")])
@pytest.mark.parametrize("form", ["appended", "alone"])
@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.model)
def test_a_score_has_the_form_that_its_graph_gives_it(chat: Chat, form: str, how: str, opened: str) -> None:
    turn = "Rate it." if form == "appended" else "{{problem}} | {{thought}} | Rate it."
    score = ScorePrompt(form=form, turn=turn, prefill="It is ", reply=how, labels=tuple("ABCDEFGHIJ"))  # type: ignore[arg-type]
    builder = builder_of(chat, Prompts(score=score))
    begun = builder.generation(PROBLEM)
    context = [*begun, *encoded(builder, "One.\n\n")]
    prompt = builder.score(context, encoded(builder, "Two.\n\n"), problem=PROBLEM, begin=len(begun))
    start = f"{builder.tokenizer.decode(context)}Two.\n\n{chat.ends}{chat.user}Rate it."
    alone = f"{chat.begin}{chat.user}{PROBLEM} | One.\n\nTwo.\n\n | Rate it."
    reply = f"{chat.user_ends}{chat.says}{opened}It is "
    assert builder.tokenizer.decode(prompt.ids) == (start if form == "appended" else alone) + reply
    assert options(prompt, builder) == list("ABCDEFGHIJ")
    assert judged(prompt, builder) == ["Two.\n\n"]


@pytest.mark.parametrize(
    "turn", ["{{candidates}}{{none}} after {{thought}} {{problem}}", "{{problem}}: after {{thought}} {{candidates}}{{none}}"]
)
@pytest.mark.parametrize(
    ("none_at", "said", "named"),
    [("first", "<B> x\n<C> y\n<A> none\n", ["", "x\n", "y"]), ("last", "<A> x\n<B> y\n<C> none\n", ["x\n", "y", ""])],
)
def test_candidates_are_judged_wherever_they_stand_and_none_has_the_first_or_the_last_label(
    turn: str, none_at: str, said: str, named: list[str]
) -> None:
    wording = {"candidate": "<{{label}}> {{candidate}}\n", "none": "<{{label}}> none\n"}
    choose: Any = ChoosePrompt(form="alone", turn=turn, none_at=none_at, labels=tuple("ABCD"), **wording)  # type: ignore[arg-type]
    builder = builder_of(R1, Prompts(choose=choose))
    begun = builder.generation(PROBLEM)
    candidates = [encoded(builder, text) for text in ("x\n", "y")]
    prompt = builder.choose([*begun, *encoded(builder, "One.\n\n")], candidates, problem=PROBLEM, begin=len(begun))
    assert said in builder.tokenizer.decode(prompt.ids)
    assert (options(prompt, builder), judged(prompt, builder)) == (["A", "B", "C"], named)


def test_labels_and_marks_that_the_tokenizer_does_not_have_are_named() -> None:
    builder = builder_of(R1, Prompts(choose=ChoosePrompt(labels=("no", "1", "2"))))
    assert builder.flaw(builder.prompts.choose, ("1", "2")) is None
    assert builder.flaw(builder.prompts.choose, ("1", "zxq")) == (
        "its engine's tokenizer has no single token for the label 'zxq' after 'Best candidate: '"
    )
    with pytest.raises(GraphError, match=r"its tokenizer has no token '\[/THINK\]', set in `prompts\.thought`"):
        builder_of(R1, Prompts(thought=Marks(open="[THINK]", close="[/THINK]")))


def test_other_marks_of_a_thought_open_and_close_it() -> None:
    builder = builder_of(R1, Prompts(thought=Marks(open="<tool_call>", close="</tool_call>")))
    decode = builder.tokenizer.decode
    assert decode(builder.generation(PROBLEM)).endswith("<think>\n<tool_call>\n")
    assert decode(builder.close_thought_ids) == "</tool_call>\n\n"
    assert builder.think_close_id == builder.tokenizer.special_ids["</tool_call>"]
