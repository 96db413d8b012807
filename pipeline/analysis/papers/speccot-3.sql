-- title: Pairs of draft and target
-- source: SpecCoT table 3, section 4.4.1
-- systems: SpecCoT = graph speccot
-- rows: draft, metric
-- columns: data, target
SELECT run, graph, data, models, percent(accuracy) AS accuracy, tokens, latency_s AS "latency s",
       percent(fallback_rate) AS fallback
FROM runs WHERE graph = 'speccot'
