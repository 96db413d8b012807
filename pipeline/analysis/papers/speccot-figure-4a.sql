-- title: Accuracy and latency by the number of first tokens that the target writes
-- source: SpecCoT figure 4a, section 4.3
-- systems: SpecCoT = graph speccot
-- rows: models, params.guidance_tokens
-- columns: data, metric
SELECT run, graph, data, models, percent(accuracy) AS accuracy, latency_s AS "latency s"
FROM runs WHERE graph = 'speccot'
