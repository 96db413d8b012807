-- title: Speed-up r over the same target alone taken apart: r = tokens x rate
-- source: r of SpecCoT table 2, SpecReason figure 3
-- rows: system, models
-- columns: data, metric
-- average: data
-- note: tokens: committed tokens of the target alone over those of the system, above 1 where its text is shorter; rate: committed tokens per second of a problem's latency over those of the target alone. At batch sizes above 1 a latency includes waiting for other problems.
SELECT run, graph, data, models, over_target.speed_up AS r, over_target.token_factor AS "= tokens",
       over_target.rate_factor AS "x rate"
FROM runs
