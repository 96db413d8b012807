-- title: Mean reward of drafted and of selected steps
-- source: SpecCoT table 5, section A.1
-- systems: SpecCoT = graph speccot
-- rows: data, models
-- columns: metric
-- note: Needs `pipeline score RUN --prm FILE`.
SELECT run, graph, data, models, reward(quality.drafted) AS "draft quality",
       reward(quality.selected) AS "selected quality"
FROM runs WHERE graph = 'speccot'
