-- What each call to a model cost, on which every view of calls is built.
--
-- A cost is exact, in picodollars: tokens times a price in micro-dollars for a million. It is null if
-- the tokens are not known, if the model has no price, or if one kind of tokens that it used has
-- none; a call for which nothing can have been charged, and a replayed one, costs 0. `ModelCall.charged` and
-- `PriceTable.cost_of` are the same rules for a call that is being committed; tests compare them.
-- `views_and_triggers.py` reads this file; the view is not for users.

-- one row per call to a model: its row, whether its tokens are unknown, and what it cost
CREATE VIEW charged_call AS SELECT
    model_call.*,
    model_call.input_tokens + model_call.cache_read_tokens + model_call.cache_write_tokens
        + model_call.cache_write_1h_tokens AS request_tokens,
    model_call.input_tokens IS NULL AND {charged_nothing model_call} IS NOT 1 AS is_unknown,
    CASE WHEN model_call.replayed THEN 0
    WHEN model_call.input_tokens IS NULL
        THEN CASE WHEN {charged_nothing model_call} THEN 0 END
    WHEN max(model_call.input_tokens, model_call.cache_read_tokens, model_call.cache_write_tokens,
        model_call.cache_write_1h_tokens, model_call.output_tokens) = 0 THEN 0
    ELSE (SELECT {cost_of input} + {cost_of output}
            + {cost_of cache_read} + {cost_of cache_write}
            + {cost_of cache_write_1h}
        FROM model_price
        WHERE model_price.run_no = model_call.run_no
          AND model_price.provider = model_call.provider AND model_price.model = model_call.model
          AND model_price.from_tokens <= model_call.input_tokens + model_call.cache_read_tokens
            + model_call.cache_write_tokens + model_call.cache_write_1h_tokens
        ORDER BY model_price.from_tokens DESC LIMIT 1) END AS cost
FROM model_call;
