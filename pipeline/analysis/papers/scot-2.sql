-- title: Tokens of a draft, by draft model
-- source: SCoT table 2, section 4.3
-- systems: SCoT = graph scot
-- rows: draft
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, text_tokens['drafted'] AS "tokens of a draft"
FROM runs WHERE graph = 'scot'
