-- The sums of a run that its figures are ratios of: a row for each problem with a chain that finished or counts as right or wrong, means over
-- its finished chains. Stages that end a chain are `$ending`, those of them that write the thought too `$whole`: such a response is split
-- between thought and answer by tokens. `worked` leaves out pauses. Token ids are read of responses after other steps alone.
WITH of_calls AS (
    SELECT chain_id, min(submit_unix_ns - (client_wait_s * 1e9)::BIGINT) AS ready,
           max(end_unix_ns) FILTER (purpose <> 'answer' AND NOT list_contains($whole, stage)) AS thought_end,
           max(end_unix_ns) FILTER (list_contains($whole, stage)) AS response_end,
           arg_max(coalesce(decode_time_s, e2e_latency_s + client_wait_s), end_unix_ns) FILTER (list_contains($whole, stage)) * 1e9 AS decode_ns,
           arg_max(output_tokens, end_unix_ns) FILTER (list_contains($whole, stage)) AS response_tokens,
           sum(output_tokens) FILTER (list_contains($ending, stage)) AS ending_tokens
    FROM calls GROUP BY chain_id),
of_responses AS (
    SELECT chain_id, sum(len(step_token_ids)) AS tokens FROM steps WHERE step_index > 0 AND list_contains($whole, stage) GROUP BY chain_id),
of_steps AS (
    SELECT chain_id, sum(draft_tokens - draft_tokens_wasted) AS draft_kept, sum(len(candidate_tokens)) AS drafts,
           sum(list_sum(candidate_tokens)) AS drafted, sum(list_max(candidate_tokens)) AS longest
    FROM steps WHERE num_candidates > 0 GROUP BY chain_id),
of_rewards AS (
    SELECT chain_id, sum(mean) AS drafted_reward, count(mean) AS drafted_rewards, sum(picked) AS selected_reward, count(picked) AS selected_rewards
    FROM (SELECT chain_id, avg(reward) AS mean, sum(reward) FILTER (selected) AS picked
          FROM rewards WHERE candidate_index IS NOT NULL AND NOT isnan(reward) GROUP BY chain_id, step_index)
    GROUP BY chain_id),
of_chains AS (
    SELECT chains.*, of_steps.*, of_rewards.*, of_calls.* EXCLUDE (chain_id),
           CASE WHEN response_tokens IS NULL THEN 0 WHEN chains.steps < 2 THEN thought_tokens ELSE coalesce(tokens, 0) END AS in_response
    FROM chains LEFT JOIN of_calls USING (chain_id) LEFT JOIN of_responses USING (chain_id) LEFT JOIN of_steps USING (chain_id)
         LEFT JOIN of_rewards USING (chain_id)
    WHERE finished OR counted IS NOT NULL)
SELECT hash(problem_id) AS problem, count(*) FILTER (finished) AS chains, count(counted) AS graded, count(*) FILTER (counted) AS "right",
       sum(chain_time_s) FILTER (finished) AS latency_s, sum(thought_tokens) FILTER (finished) AS thought_tokens,
       sum(coalesce(ending_tokens, 0) - in_response) FILTER (finished) AS answer_tokens,
       sum(worked(greatest(thought_end, response_end - (decode_ns * (1 - least(in_response / response_tokens, 1)))::BIGINT))
           - worked(ready)) FILTER (finished) / 1e9 AS thinking_s,
       sum(thought_tokens - coalesce(draft_kept, 0)) FILTER (finished) AS target_tokens, sum(drafts) FILTER (finished) AS drafts,
       sum(drafted) FILTER (finished) AS drafted, sum(longest) FILTER (finished) AS longest, sum(steps) FILTER (finished) AS steps,
       sum(accepted_steps) FILTER (finished) AS accepted, sum(fallback_steps) FILTER (finished) AS fallbacks,
       sum(unverified_steps) FILTER (finished) AS unverified, sum(drafted_reward) FILTER (finished) AS drafted_reward,
       sum(drafted_rewards) FILTER (finished) AS drafted_rewards, sum(selected_reward) FILTER (finished) AS selected_reward,
       sum(selected_rewards) FILTER (finished) AS selected_rewards
FROM of_chains GROUP BY problem_id
