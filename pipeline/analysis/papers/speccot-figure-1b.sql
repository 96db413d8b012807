-- title: Accuracy of the draft with and without first tokens of the target
-- source: SpecCoT figure 1b, section 2.3
-- systems: draft alone = graph draft; guided draft = graph guided-draft
-- rows: system, models
-- columns: data, metric
SELECT run, graph, data, models, percent(accuracy) AS accuracy
FROM runs WHERE graph IN ('draft', 'guided-draft')
