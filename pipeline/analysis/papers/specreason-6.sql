-- title: Accuracy and latency by the number of first steps that the target writes
-- source: SpecReason figure 6, section 5.3
-- systems: SpecReason = graph specreason
-- rows: models, params.first_steps
-- columns: data, metric
SELECT run, graph, data, models, percent(accuracy) AS accuracy, latency_s AS "latency s"
FROM runs WHERE graph = 'specreason'
