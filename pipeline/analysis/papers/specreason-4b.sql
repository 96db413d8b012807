-- title: Accuracy by token budget
-- source: SpecReason figure 4b, section 5.2
-- systems: target alone = graph target; SpecReason = graph specreason
-- rows: params.token_budget
-- columns: data, system, metric
SELECT run, graph, data, models, percent(accuracy) AS accuracy,
       signed(over_target.accuracy_gain) AS "gain over the target alone"
FROM runs WHERE graph IN ('target', 'specreason')
