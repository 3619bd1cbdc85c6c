-- What each call to a model cost, on which every view of calls is built.
--
-- A cost is exact, in picodollars: tokens times a price in micro-dollars for a million, and fees. It is
-- null if the gateway says why it is not known, if the tokens are not known, if the model has no price
-- under the call's condition, or if one kind of tokens that it used has none. The charge that the
-- provider stated comes before all that. If another model than the asked one served the call, the
-- condition has `model=` and its name: the asked model's price under this condition applies, or else
-- the other model's. A call for which nothing can have been charged, and a replayed one, costs 0.
-- `ModelCall.charged` and `call_cost` are the same rules for a call that is being committed; tests
-- compare them. `views_and_triggers.py` reads this file; the view is not for users.

-- one row per call to a model: its row, whether its tokens are unknown, and what it cost
CREATE VIEW charged_call AS SELECT
    model_call.*,
    model_call.input_tokens + model_call.cache_read_tokens + model_call.cache_write_tokens
        + model_call.cache_write_1h_tokens AS request_tokens,
    model_call.input_tokens IS NULL AND {charged_nothing model_call} IS NOT 1 AS is_unknown,
    CASE WHEN model_call.replayed THEN 0
    WHEN model_call.cost_unknown IS NOT NULL THEN NULL
    WHEN model_call.stated_cost IS NOT NULL THEN model_call.stated_cost
    WHEN model_call.input_tokens IS NULL
        THEN CASE WHEN {charged_nothing model_call} THEN coalesce(model_call.fees, 0) END
    WHEN max(model_call.input_tokens, model_call.cache_read_tokens, model_call.cache_write_tokens,
        model_call.cache_write_1h_tokens, model_call.output_tokens) = 0
        THEN coalesce(model_call.fees, 0)
    ELSE coalesce(
        {cost_by_price model}
          AND model_price.condition = coalesce(model_call.price_condition, '')
        ORDER BY model_price.from_tokens DESC LIMIT 1),
        CASE WHEN instr({condition_in_spaces}, ' model=' || model_call.model_served || ' ')
        THEN {cost_by_price model_served}
          AND model_price.condition =
            trim(replace({condition_in_spaces}, ' model=' || model_call.model_served || ' ', ' '))
        ORDER BY model_price.from_tokens DESC LIMIT 1) END) END AS cost
FROM model_call;
