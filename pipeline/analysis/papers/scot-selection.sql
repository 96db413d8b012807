-- title: Selection among drafted thoughts: of problems with a right draft (class 1) and without (class 2)
-- source: SCoT 4.4, its table of selection
-- systems: SCoT = graph scot
-- rows: system, models
-- columns: data, metric
SELECT run, graph, data, models, plain(selection.class_1) AS "class 1",
       percent(selection.class_1_right) AS "a right draft selected", plain(selection.class_2) AS "class 2",
       percent(selection.class_2_right) AS "all rejected"
FROM runs WHERE graph = 'scot'
