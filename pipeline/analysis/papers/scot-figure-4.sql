-- title: Accuracy of SCoT and of both models alone
-- source: SCoT figure 4, section 4.2
-- systems: draft alone = graph draft; target alone = graph target; SCoT = graph scot
-- rows: system, models
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, percent(accuracy) AS accuracy
FROM runs WHERE graph IN ('draft', 'target', 'scot')
