"""lm_eval as a client, by the Python of `.venv/clients`: the URL of a server and a number of problems enter, the score is printed."""

import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

url, problems = sys.argv[1:]
found = simple_evaluate(
    model="local-chat-completions",
    model_args=f"model=speccot,base_url={url}/chat/completions,num_concurrent={problems},tokenizer_backend=none",
    tasks=["pipeline_arith"],
    limit=int(problems),
    apply_chat_template=True,
    bootstrap_iters=0,
    # Without the thousands of task files that come with it, which it would read for a minute.
    task_manager=TaskManager(include_path=Path(__file__).parent, include_defaults=False),
)
print(found["results"]["pipeline_arith"]["exact_match,boxed"])
