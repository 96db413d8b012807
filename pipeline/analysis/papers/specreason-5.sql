-- title: Accuracy and latency by acceptance threshold
-- source: SpecReason figure 5, section 5.3
-- systems: SpecReason = graph specreason; SpecReason+Decode = graph specreason-decode
-- rows: system, models, params.threshold
-- columns: data, metric
SELECT run, graph, data, models, percent(accuracy) AS accuracy, latency_s AS "latency s",
       percent(draft_share) AS "steps by the draft"
FROM runs WHERE graph IN ('specreason', 'specreason-decode')
