-- title: One model alone
-- source: SpecCoT table 1, section 2.1
-- systems: draft alone = graph draft; target alone = graph target
-- rows: metric
-- columns: data, models
SELECT run, graph, data, models, percent(accuracy) AS accuracy, latency_s AS "latency s", tokens,
       plain(kept_tokens_per_s) AS "kept tokens/s"
FROM runs WHERE graph IN ('draft', 'target')
