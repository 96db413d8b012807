-- title: Fallback rate by data set
-- source: SpecCoT figure 4c, section 4.4.2
-- systems: SpecCoT = graph speccot
-- rows: data, models
-- columns: metric, params.candidates
SELECT run, graph, data, models, percent(fallback_rate) AS "fallback with candidates"
FROM runs WHERE graph = 'speccot'
