-- title: All data sets: accuracy, committed tokens and latency per problem, speed-up r over the same target alone
-- source: SpecCoT tables 2 and 3, SpecReason figure 3
-- rows: system, models
-- columns: data, metric
-- average: data
SELECT run, graph, data, models, percent(accuracy) AS accuracy, tokens, latency_s AS "latency s",
       over_target.speed_up AS r
FROM runs
