-- title: Accuracy of the best of N drafts, by N
-- source: SpecCoT figure 1a, section 2.3
-- systems: best of N = graph best-of-n
-- rows: models, params.candidates
-- columns: data, metric
SELECT run, graph, data, models, percent(accuracy) AS accuracy
FROM runs WHERE graph = 'best-of-n'
