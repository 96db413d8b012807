-- title: Time and throughput by resources
-- source: SpecCoT table 4, section 4.4.3
-- systems: draft alone = graph draft; target alone = graph target; SpecCoT = graph speccot
-- rows: data, system, models
-- columns: metric, resources
-- note: Saved and gained over the least resources that the system ran on.
SELECT run, graph, data, models, latency_s AS "latency s",
       signed(saved(over_least_resources.speed_up)) AS "time saved", plain(kept_tokens_per_s) AS "kept tokens/s",
       signed(plain(kept_tokens_per_s / least_resources.kept_tokens_per_s - 1)) AS "throughput gained"
FROM runs WHERE graph IN ('draft', 'target', 'speccot')
