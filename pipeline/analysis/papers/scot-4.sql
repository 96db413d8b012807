-- title: Accuracy without parts of SCoT
-- source: SCoT 4.3, its table of ablations
-- systems: SCoT = graph scot; single draft = graph scot candidates=1; without error correction = graph best-of-n
-- rows: system, models, params.adapter
-- columns: data, metric
-- average: data
-- note: Without tuning: runs without an adapter.
SELECT run, graph, data, models, percent(accuracy) AS accuracy
FROM runs WHERE graph IN ('scot', 'best-of-n')
