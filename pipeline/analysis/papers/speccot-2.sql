-- title: Tokens, latency per problem and speed-up r over the same target alone
-- source: SpecCoT table 2, section 4.2
-- systems: draft alone = graph draft; target alone = graph target; SpecCoT = graph speccot
-- rows: system, models
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, tokens, latency_s AS "latency s", over_target.speed_up AS r
FROM runs WHERE graph IN ('draft', 'target', 'speccot')
