-- title: Accuracy and fallback rate by the number of candidates
-- source: SpecCoT figure 4b, section 4.3
-- systems: SpecCoT = graph speccot
-- rows: models, params.candidates
-- columns: data, metric
SELECT run, graph, data, models, percent(accuracy) AS accuracy, percent(fallback_rate) AS fallback
FROM runs WHERE graph = 'speccot'
