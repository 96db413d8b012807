-- title: Accuracy and latency of the schemes
-- source: SpecReason figure 3, section 5.2
-- systems: draft alone = graph draft; target alone = graph target; SpecDecode = graph speculative-decoding; SpecReason = graph specreason
-- rows: system, models, speculation
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, percent(accuracy) AS accuracy, latency_s AS "latency s", over_target.speed_up AS r
FROM runs WHERE graph IN ('draft', 'target', 'speculative-decoding', 'specreason')
