-- title: Tokens of the answer after the thought
-- source: SCoT table 3, section 4.5
-- systems: target alone = graph target; SCoT = graph scot
-- rows: system, models
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, answer_tokens AS "answer tokens"
FROM runs WHERE graph IN ('target', 'scot')
