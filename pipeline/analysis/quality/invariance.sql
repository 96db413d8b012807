-- The chains that finished in both runs, by the first step, from 0, in which they differ, and why; nulls for those that are equal. Where
-- one chain has more steps than the other, or its answer is another one, what differs was written after the last common step.
WITH common AS (
    SELECT chain_id, count(DISTINCT coalesce(answer, '')) = 1 AS same
    FROM chains WHERE finished GROUP BY chain_id HAVING count(DISTINCT run) = 2),
texts AS (
    SELECT chain_id, run = $one AS one, row_number() OVER (PARTITION BY run, chain_id ORDER BY step_index) - 1 AS place,
           hash(step_token_ids) AS text, hash(candidate_texts) AS drafts, decision = 'accepted' AS accepted
    FROM steps SEMI JOIN common USING (chain_id)),
places AS (
    SELECT chain_id, place, count(*) AS runs, count(DISTINCT text) AS texts,
           CASE WHEN count(*) = 1 THEN 'writing' WHEN count(DISTINCT drafts) = 2 THEN 'drafts' WHEN bool_or(accepted) THEN 'verdict'
                ELSE 'writing' END AS why
    FROM texts GROUP BY chain_id, place),
parted AS (
    SELECT chain_id, same, min(place) FILTER (runs = 1 OR texts = 2) AS step, arg_min(why, place) FILTER (runs = 1 OR texts = 2) AS why,
           count(place) AS steps
    FROM common LEFT JOIN places USING (chain_id) GROUP BY chain_id, same)
SELECT step, why, count(*) AS chains, count(*) FILTER (same) AS equal_answers
FROM (SELECT same, CASE WHEN step IS NULL AND NOT same THEN steps ELSE step END AS step,
             CASE WHEN step IS NULL AND NOT same THEN 'writing' ELSE why END AS why FROM parted)
GROUP BY step, why
