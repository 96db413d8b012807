-- The tables of the papers, as `compare --table NAME` prints them: over `runs`, `members`, `choices` and the tables of the run folders. A cell
-- is the text of a figure, a share with its %, or a number that is still to be rounded; an average is over the data sets.

-- table: speccot-2
-- title: Tokens, latency per problem and speed-up r over the same target alone
-- source: SpecCoT table 2, section 4.2
WITH found AS (
    SELECT graph, models, data, tokens, latency_s, over_target.speed_up AS r FROM runs
    UNION ALL
    SELECT graph, models, 'average', {'value': avg(tokens.value)}, {'value': avg(latency_s.value)}, {'value': avg(over_target.speed_up.value)}
    FROM runs GROUP BY ALL HAVING count(DISTINCT data) > 1)
PIVOT (FROM found WHERE graph IN ('draft', 'target', 'speccot')) ON data USING first(tokens) AS tokens, first(latency_s) AS latency_s, first(r) AS r
GROUP BY graph, models ORDER BY list_position(['draft', 'target', 'speccot'], graph), models

-- table: speccot-3
-- title: Pairs of draft and target
-- source: SpecCoT table 3, section 4.4.1
PIVOT (SELECT draft, target, data, accuracy.text AS accuracy, tokens.text AS tokens, latency_s.text AS latency_s, fallback_rate.text AS fallback
       FROM runs WHERE graph = 'speccot')
ON target USING first(accuracy) AS accuracy, first(tokens) AS tokens, first(latency_s) AS latency_s, first(fallback) AS fallback
GROUP BY data, draft ORDER BY data, draft

-- table: speccot-4
-- title: Time and throughput by resources
-- source: SpecCoT table 4, section 4.4.3
-- note: Saved and gained over the least resources that the system ran on.
SELECT data, graph, models, resources, latency_s.text AS latency_s,
       format('{:.1f}%', 100 * (1 - latency_s.value / first_value(latency_s.value) OVER least)) AS time_saved,
       kept_tokens_per_s AS "kept tokens/s",
       format('{:.1f}%', 100 * (kept_tokens_per_s / first_value(kept_tokens_per_s) OVER least - 1)) AS throughput_gained
FROM runs WHERE graph IN ('draft', 'target', 'speccot')
WINDOW least AS (PARTITION BY data, graph, models ORDER BY gpus, cores, flops_per_s)
ORDER BY data, list_position(['draft', 'target', 'speccot'], graph), models, gpus, cores, flops_per_s

-- table: speccot-5
-- title: Mean reward of drafted and of selected steps
-- source: SpecCoT table 5, section A.1
-- note: Needs `pipeline score RUN --prm FILE`.
SELECT data, models, drafted_reward.text AS draft_quality, selected_reward.text AS selected_quality
FROM runs WHERE graph = 'speccot' AND drafted_reward.value IS NOT NULL ORDER BY data, models

-- table: speccot-6
-- title: Wall time and throughput by batch size
-- source: SpecCoT table 6, section A.2
-- note: Speed-up: wall time at the least batch size over this one.
SELECT data, models, batch_size, wall_time_s AS "wall time s", kept_tokens_per_s AS "kept tokens/s",
       first_value(wall_time_s) OVER (PARTITION BY data, models ORDER BY batch_size) / wall_time_s AS speed_up
FROM runs WHERE graph = 'speccot' ORDER BY data, models, batch_size

-- table: scot-1
-- title: Tokens of the thought by target and draft, latency of the thinking stage and speed-up over the same target alone
-- source: SCoT table 1, section 4.2
-- note: Per problem; of parallel drafts the longest counts. Thinking: from a chain's first call to the end of its thought. At batch sizes above 1 times include waiting for other chains.
PIVOT (SELECT graph, models, data, target_thought_tokens.text AS target_tokens, longest_draft_tokens.text AS draft_tokens,
              thinking_s.text AS thinking_s, over_target.thinking_speed_up.text AS speed_up
       FROM runs WHERE graph IN ('target', 'scot'))
ON data USING first(target_tokens) AS target_tokens, first(draft_tokens) AS draft_tokens, first(thinking_s) AS thinking_s, first(speed_up) AS speed_up
GROUP BY graph, models ORDER BY graph DESC, models

-- table: scot-2
-- title: Tokens of a draft, by draft model
-- source: SCoT table 2, section 4.3
PIVOT (SELECT draft, data, tokens_per_draft.text AS tokens FROM runs WHERE graph = 'scot') ON data USING first(tokens) GROUP BY draft ORDER BY draft

-- table: scot-4
-- title: Accuracy without parts of SCoT, and selection among drafted thoughts
-- source: SCoT 4.3 and 4.4, their tables of ablations and of selection
-- note: Class 1: problems with a right draft, and how often one is selected; class 2: without, and how often all drafts are rejected.
SELECT graph, models, params['candidates'] AS candidates, params['adapter'] AS adapter, data, accuracy.text AS accuracy,
       count(*) FILTER (right_drafted) AS class_1, format('{:.1f}%', 100 * avg(picked_right::INT) FILTER (right_drafted)) AS selected,
       count(*) FILTER (NOT right_drafted) AS class_2,
       format('{:.1f}%', 100 * avg(rejected::INT) FILTER (NOT right_drafted AND may_reject)) AS rejected
FROM runs LEFT JOIN choices USING (run) WHERE graph IN ('scot', 'best-of-n') GROUP BY ALL ORDER BY graph DESC, models, candidates DESC, adapter, data

-- table: specreason-3
-- title: Accuracy and latency of the schemes
-- source: SpecReason figure 3, section 5.2
PIVOT (SELECT graph, models, speculation, data, accuracy.text AS accuracy, latency_s.text AS latency_s, over_target.speed_up.text AS r
       FROM runs WHERE graph IN ('draft', 'target', 'speculative-decoding', 'specreason'))
ON data USING first(accuracy) AS accuracy, first(latency_s) AS latency_s, first(r) AS r
GROUP BY graph, models, speculation
ORDER BY list_position(['draft', 'target', 'speculative-decoding', 'specreason'], graph), models, speculation

-- table: specreason-4
-- title: Tokens of the thought
-- source: SpecReason figure 4a, section 5.2
PIVOT (SELECT graph, models, data, thought_tokens.text AS tokens FROM runs WHERE graph IN ('target', 'draft', 'specreason'))
ON data USING first(tokens) GROUP BY graph, models ORDER BY list_position(['target', 'draft', 'specreason'], graph), models

-- table: specreason-7
-- title: Mean utility score of speculated steps, by their reward from a process reward model
-- source: SpecReason figure 7, section 5.4
-- note: All speculated steps, accepted and rejected ones. Needs `pipeline score RUN --prm FILE`.
WITH scored AS (
    SELECT data, models, score_value, reward, rank() OVER (PARTITION BY member ORDER BY score_value) AS score_rank,
           rank() OVER (PARTITION BY member ORDER BY reward) AS reward_rank
    FROM (SELECT *, coalesce(chosen_candidate, 0) AS candidate_index FROM steps) AS steps JOIN members USING (run)
         JOIN (SELECT run, chain_id, step_index, candidate_index, reward FROM rewards WHERE reward IS NOT NULL)
             USING (run, chain_id, step_index, candidate_index)
         JOIN (SELECT run AS member, data, models FROM runs WHERE graph = 'specreason') USING (member)
    WHERE score_value IS NOT NULL AND NOT score_of_candidates AND (chosen_candidate IS NOT NULL OR num_candidates = 1))
SELECT data, models, format('[{:.1f}, {:.1f})', bin / 10, (bin + 1) / 10) AS reward, score, steps
FROM (SELECT data, models, least(floor(reward * 10 + 1e-9), 9) AS bin, avg(score_value) AS score, count(*) AS steps FROM scored GROUP BY ALL)
UNION ALL
SELECT data, models, 'rank correlation', nullif(corr(score_rank, reward_rank), 'NaN'), count(*) FROM scored GROUP BY ALL
ORDER BY data, models, reward

-- table: data-sets
-- title: All data sets: accuracy, committed tokens and latency per problem, speed-up r over the same target alone
-- source: SpecCoT tables 2 and 3, SpecReason figure 3
PIVOT (SELECT graph, models, data, accuracy.text AS accuracy, tokens.text AS tokens, latency_s.text AS latency_s, over_target.speed_up.text AS r
       FROM runs)
ON data USING first(accuracy) AS accuracy, first(tokens) AS tokens, first(latency_s) AS latency_s, first(r) AS r
GROUP BY graph, models ORDER BY graph, models
