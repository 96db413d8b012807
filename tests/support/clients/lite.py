"""litellm as a client, by the Python of `.venv/clients`: the URL of a server enters; one answer, whole and streamed, is printed as JSON."""

import json
import sys

import litellm

asked = {
    "model": "openai/speccot",
    "api_base": sys.argv[1],
    "api_key": "none",
    "seed": 7,
    "messages": [{"role": "user", "content": "What is 2 + 3?"}],
}
message = litellm.completion(**asked).choices[0].message
deltas = [piece.choices[0].delta for piece in litellm.completion(**asked, stream=True)]
whole = [message.reasoning_content, message.content]
streamed = ["".join(getattr(delta, part, None) or "" for delta in deltas) for part in ("reasoning_content", "content")]
print(json.dumps({"whole": whole, "streamed": streamed, "pieces": len(deltas)}))
