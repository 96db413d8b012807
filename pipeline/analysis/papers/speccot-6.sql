-- title: Wall time and throughput by batch size
-- source: SpecCoT table 6, section A.2
-- systems: SpecCoT = graph speccot
-- rows: system, models, batch_size
-- columns: data, metric
-- note: Speed-up: wall time at the least batch size over this one.
SELECT run, graph, data, models, plain(wall_time_s) AS "wall time s", plain(kept_tokens_per_s) AS "kept tokens/s",
       plain(least_batch_size.wall_time_s / wall_time_s) AS "speed-up"
FROM runs WHERE graph = 'speccot'
