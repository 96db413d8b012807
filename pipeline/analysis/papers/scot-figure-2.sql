-- title: Accuracy of both models alone, and of the best of the drafts
-- source: SCoT figure 2, section 3.2
-- systems: draft alone = graph draft; best of N drafts = graph best-of-n; target alone = graph target
-- rows: system, models
-- columns: data, metric
-- note: Best of N: problems with a right draft, whichever the target picks.
SELECT run, graph, data, models,
       CASE graph WHEN 'best-of-n' THEN percent(plain(selection.class_1 / (selection.class_1 + selection.class_2)))
                  ELSE percent(accuracy) END AS accuracy
FROM runs WHERE graph IN ('draft', 'target', 'best-of-n')
