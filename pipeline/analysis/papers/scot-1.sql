-- title: Tokens of the thought by target and draft, latency of the thinking stage and speed-up over the same target alone
-- source: SCoT table 1, section 4.2
-- systems: target alone = graph target; SCoT = graph scot
-- rows: system, models
-- columns: data, metric
-- average: data
-- note: Per problem; of parallel drafts the longest counts. Of the thinking stage: from a chain's first call to the end of its thought, without the answer. At batch sizes above 1 the time includes waiting for other chains.
SELECT run, graph, data, models, target_thought_tokens AS "target tokens", longest_draft_tokens AS "draft tokens",
       thinking_s AS "thinking s", over_target.thinking_speed_up AS "speed-up"
FROM runs WHERE graph IN ('target', 'scot')
