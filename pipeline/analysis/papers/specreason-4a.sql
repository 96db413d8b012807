-- title: Tokens of the thought
-- source: SpecReason figure 4a, section 5.2
-- systems: target alone = graph target; draft alone = graph draft; SpecReason = graph specreason
-- rows: system, models
-- columns: data, metric
SELECT run, graph, data, models, thought_tokens AS "tokens of the thought"
FROM runs WHERE graph IN ('target', 'draft', 'specreason')
