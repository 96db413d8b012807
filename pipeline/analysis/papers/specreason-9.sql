-- title: Tokens of the thought, by pair of models
-- source: SpecReason figure 9, section A.2
-- systems: target alone = graph target; draft alone = graph draft; SpecReason = graph specreason
-- rows: system, models
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, thought_tokens AS "tokens of the thought"
FROM runs WHERE graph IN ('target', 'draft', 'specreason')
