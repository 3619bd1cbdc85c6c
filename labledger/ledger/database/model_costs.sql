-- What each call to a model cost, on which every view of calls is built.
--
-- A cost is exact, in picodollars: tokens times a price in micro-dollars for a million, and fees. It is
-- null if the gateway says why it is not known, if the tokens are not known, if the model has no price
-- under the call's condition, or if one kind of tokens that it used has none. The charge that the
-- provider stated comes before all that. A call for which nothing can have been charged, and a replayed
-- one, costs 0. `ModelCall.charged` and `call_cost` are the same rules for a call that is being
-- committed; tests compare them. `views_and_triggers.py` reads this file; the view is not for users.

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
    ELSE (SELECT {cost_of input} + {cost_of output}
            + {cost_of cache_read} + {cost_of cache_write}
            + {cost_of cache_write_1h} + coalesce(model_call.fees, 0)
        FROM model_price
        WHERE model_price.run_no = model_call.run_no
          AND model_price.provider = model_call.provider AND model_price.model = model_call.model
          AND model_price.condition = coalesce(model_call.price_condition, '')
          AND model_price.from_tokens <= model_call.input_tokens + model_call.cache_read_tokens
            + model_call.cache_write_tokens + model_call.cache_write_1h_tokens
        ORDER BY model_price.from_tokens DESC LIMIT 1) END AS cost
FROM model_call;
