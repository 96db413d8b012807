-- title: Latency with and without token-level speculation in the target
-- source: SpecCoT section A.3
-- systems: SpecCoT = graph speccot; SpecCoT+Decode = graph speccot-decode
-- rows: system, models
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, latency_s AS "latency s", over_target.speed_up AS r
FROM runs WHERE graph IN ('speccot', 'speccot-decode')
