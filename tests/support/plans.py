"""A graph full of text that means something elsewhere."""

NASTY = '"];a-->b;<img src=x onerror=y>&lt;\\N}}{{#quot;`$$'


GRAPH = """
name: nasty
prompts: {{problem: {problem}}}
engines:
  draft: {{backend: torch, model: {model}}}
  target: {{backend: torch, model: bundled:tiny-target}}
  third: {{backend: torch, model: bundled:tiny-target}}
stages:
  guide: {{kind: generate, engine: third, unit: tokens, max_tokens: 8}}
  one: {{kind: draft, engine: draft, unit: step, candidates: 2, max_tokens: 9, after: guide}}
  two: {{kind: draft, engine: target, unit: step, candidates: 2, max_tokens: 9, after: guide}}
  verify: {{kind: choose, engine: target, after: [one, two]}}
  polish: {{kind: generate, engine: target, unit: step, max_tokens: 9, after: verify, when: verify.accepted}}
  fallback: {{kind: generate, engine: target, unit: step, max_tokens: 9, after: verify, when: verify.rejected}}
  answer: {{kind: answer, engine: target, after: [polish, fallback]}}
"""
