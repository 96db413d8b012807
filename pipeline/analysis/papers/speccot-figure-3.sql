-- title: Accuracy of SpecCoT and of both models alone
-- source: SpecCoT figure 3, section 4.2
-- systems: draft alone = graph draft; target alone = graph target; SpecCoT = graph speccot
-- rows: system, models
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, percent(accuracy) AS accuracy
FROM runs WHERE graph IN ('draft', 'target', 'speccot')
