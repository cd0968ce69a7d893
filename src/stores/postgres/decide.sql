-- The body of a plpgsql function: decides on a list of operations, all of them at one moment. src/core/store.ts says what
-- they mean. An upper-case name between two @ is a constant of ../constants.ts.
--
--   keys  text[]    the instances concerned, distinct, in ascending order (bytes)
--   ops   float8[]  horizon and back in ms, then the operations one after another, each
--                   verb, deadline (ms, like all moments), cost, a, b, count, and for each of count buckets
--                   place in keys, rate (units per ms), capacity, fill (1 or 0), blockFor (ms; 0 none; Infinity drain),
--                   burst (0: none)
--     1 admit     a: maxWait in ms, b: 1 to claim as well
--     2 claim     a: since, b: ms by which the last bucket may be ahead of the horizon
--     3 giveBack  a: slot, b: the cost it was claimed for (-1: no slot)
--     4 reset
--     5 beat      an instance's heartbeat
--     7 leave     an instance leaves; two places: its own, and that of the number that have left
--     6 exchange  of an upstream; cost: the rate it allows (0: no news), a: how long, b: how long it is paused
--
-- Returns float8[]: the moment, then for each operation its verdict and more
--   -1 too late, nothing done
--   admit       0, levels, and if claimed the claim's answer
--               1 too-costly, 2 blocked, 3 overflow, 4 max-wait; retryAfterMs (-1: never), which refuse (bits), levels
--   claim       0, slot, or 1, when each bucket is free
--   giveBack, reset, leave  0
--   beat        0, how many instances there are, how many have left so far
--   exchange    0, how long it is paused, the rate, how long that holds (0: there is none)
--
-- Of an upstream `blocked` is when its pause ends, and `free` when its rate ends.
#variable_conflict use_variable
DECLARE
  levels float8[];
  ats float8[];
  frees float8[];
  rates float8[];
  blocks float8[];
  expiries float8[];
  ends float8[] := array_fill('NaN'::float8, ARRAY[cardinality(keys)]);  -- NaN: not changed
  now float8;
  horizon float8 := ops[1];
  back float8 := ops[2];
  result float8[];
  o int := 1;
  p int := 3;
  size int := cardinality(ops);
  verb int;
  cost float8;
  a float8;
  b float8;
  first int;
  last int;
  claims bool;
  reason int;
  masks float8[];
  bit float8;
  retry float8;
  slot float8;
  far bool;
  rate float8;
  capacity float8;
  target float8;
  others int;
  i int;
BEGIN
  -- First the missing rows, then the locks, each in the order of the keys, so that there is no deadlock. If a row is
  -- pruned in between, the whole call fails and is made again.
  INSERT INTO @table@ AS t (key, level, at, free, rate, blocked, expires)
    SELECT k, 0, '-Infinity', '-Infinity', 1, '-Infinity', '-Infinity' FROM unnest(keys) k
    WHERE (SELECT true FROM @table@ t WHERE t.key = k) IS NULL
    ORDER BY k COLLATE "C"
    ON CONFLICT DO NOTHING;
  SELECT array_agg(s.level), array_agg(s.at), array_agg(s.free), array_agg(s.rate),
      array_agg(s.blocked), array_agg(s.expires)
    INTO levels, ats, frees, rates, blocks, expiries
    FROM (SELECT t.level, t.at, t.free, t.rate, t.blocked, t.expires FROM @table@ t
          WHERE t.key = ANY (keys) ORDER BY t.key FOR NO KEY UPDATE) s;
  IF cardinality(levels) IS DISTINCT FROM cardinality(keys) THEN
    RAISE EXCEPTION 'rows were pruned meanwhile' USING ERRCODE = 'serialization_failure';
  END IF;
  now := @now@;
  result[1] := now;
  -- The clock went back: no time has passed. This is kept whatever else happens, or it would be done again.
  FOR i IN 1 .. cardinality(keys) LOOP
    IF ats[i] > now THEN
      frees[i] := frees[i] + (now - ats[i]);
      blocks[i] := blocks[i] + (now - ats[i]);
      ends[i] := expiries[i] - @KEEP_MARGIN@ + (now - ats[i]);
      ats[i] := now;
    END IF;
  END LOOP;

  WHILE p < size LOOP
    verb := ops[p];
    cost := ops[p + 2];
    a := ops[p + 3];
    b := ops[p + 4];
    first := p + 6;
    last := first + ops[p + 5]::int * 6 - 1;
    o := o + 1;
    IF now > ops[p + 1] THEN
      result[o] := -1;
      p := last + 1;
      CONTINUE;
    END IF;
    p := last + 1;

    IF verb = 6 THEN
      i := ops[first];
      blocks[i] := greatest(blocks[i], now + b);
      IF cost > 0 THEN
        rates[i] := cost;
        frees[i] := now + a;
      END IF;
      -- A clock that goes back is noticed by the moment of the last exchange.
      ats[i] := now;
      ends[i] := greatest(blocks[i], frees[i]);
      result := result || ARRAY[0, blocks[i] - now, rates[i], greatest(0, frees[i] - now)];
      o := o + 3;
      CONTINUE;
    END IF;

    IF verb = 7 THEN
      i := ops[first];
      IF ats[i] >= now - @BEAT_LIFE@ THEN
        others := ops[first + 6];
        levels[others] := levels[others] + 1;
        -- Longer than any instance takes to ask.
        ends[others] := now + 60000;
      END IF;
      ats[i] := '-Infinity';
      ends[i] := now;
      result[o] := 0;
      CONTINUE;
    END IF;

    FOR f IN first .. last BY 6 LOOP
      i := ops[f];
      levels[i] := greatest(0, levels[i] - (now - ats[i]) * ops[f + 1]);
      ats[i] := now;
      IF rates[i] <> ops[f + 1] THEN
        -- The time until the next slot passes at the present rate. This is kept, or it would be done again.
        IF frees[i] > now THEN frees[i] := now + (frees[i] - now) * rates[i] / ops[f + 1]; END IF;
        rates[i] := ops[f + 1];
        ends[i] := greatest(now + levels[i] / ops[f + 1], frees[i], CASE WHEN blocks[i] < 'Infinity' THEN blocks[i] END);
      END IF;
      IF blocks[i] = 'Infinity' AND levels[i] <= @LEVEL_TOLERANCE@ THEN
        -- It must not come back with the level, so its end is kept.
        blocks[i] := '-Infinity';
        ends[i] := greatest(now + levels[i] / ops[f + 1], frees[i]);
      END IF;
    END LOOP;

    claims := verb = 2;
    IF verb = 1 THEN
      masks := '{0,0,0,0}';
      bit := 1;
      FOR f IN first .. last BY 6 LOOP
        i := ops[f];
        capacity := ops[f + 2];
        IF cost > capacity + @LEVEL_TOLERANCE@ THEN masks[1] := masks[1] + bit; END IF;
        IF blocks[i] > now THEN masks[2] := masks[2] + bit; END IF;
        IF levels[i] + cost - capacity > @LEVEL_TOLERANCE@ THEN masks[3] := masks[3] + bit; END IF;
        IF (levels[i] - greatest(0, ops[f + 5] - cost)) / ops[f + 1] - @SAME_WAIT@ > a THEN masks[4] := masks[4] + bit; END IF;
        bit := bit * 2;
      END LOOP;
      reason := CASE WHEN masks[1] > 0 THEN 1 WHEN masks[2] > 0 THEN 2 WHEN masks[3] > 0 THEN 3
                     WHEN masks[4] > 0 THEN 4 ELSE 0 END;
      result[o] := reason;
      IF reason = 0 THEN
        FOR f IN first .. last BY 6 LOOP
          i := ops[f];
          levels[i] := levels[i] + cost;
        END LOOP;
        claims := b = 1;
      ELSE
        IF reason = 3 THEN
          FOR f IN first .. last BY 6 LOOP
            i := ops[f];
            IF levels[i] + cost - ops[f + 2] > @LEVEL_TOLERANCE@ THEN
              IF ops[f + 3] = 1 THEN levels[i] := greatest(levels[i], ops[f + 2]); END IF;
              IF ops[f + 4] > 0 THEN blocks[i] := now + ops[f + 4]; END IF;
              IF ops[f + 3] = 1 OR ops[f + 4] > 0 THEN
                ends[i] := greatest(now + levels[i] / ops[f + 1], frees[i], CASE WHEN blocks[i] < 'Infinity' THEN blocks[i] END);
              END IF;
            END IF;
          END LOOP;
        END IF;
        retry := CASE WHEN reason = 1 THEN -1 ELSE 0 END;
        IF reason > 1 THEN
          FOR f IN first .. last BY 6 LOOP
            i := ops[f];
            rate := ops[f + 1];
            target := CASE WHEN blocks[i] = 'Infinity' THEN 0 
              ELSE least(ops[f + 2] - cost, rate * a + greatest(0, ops[f + 5] - cost)) END;
            retry := greatest(retry, (levels[i] - target) / rate);
            IF blocks[i] < 'Infinity' THEN retry := greatest(retry, blocks[i] - now); END IF;
          END LOOP;
        END IF;
        result[o + 1] := retry;
        result[o + 2] := masks[reason];
        o := o + 2;
      END IF;
      FOR f IN first .. last BY 6 LOOP
        i := ops[f];
        o := o + 1;
        result[o] := levels[i];
        IF reason = 0 THEN
          ends[i] := greatest(now + levels[i] / ops[f + 1], frees[i], CASE WHEN blocks[i] < 'Infinity' THEN blocks[i] END);
        END IF;
      END LOOP;
      IF claims THEN
        o := o + 1;
        a := 0;
        b := 0;
      END IF;
    ELSIF verb <> 2 THEN
      result[o] := 0;
    END IF;

    IF claims THEN
      slot := now - least(a, back);
      FOR f IN first .. last BY 6 LOOP
        far := slot > now + horizon;
        slot := greatest(slot, frees[ops[f]::int] - greatest(0, ops[f + 5] - cost) / ops[f + 1]);
      END LOOP;
      IF far OR slot > now + horizon + b THEN
        result[o] := 1;
        FOR f IN first .. last BY 6 LOOP
          o := o + 1;
          result[o] := greatest(now, frees[ops[f]::int] - greatest(0, ops[f + 5] - cost) / ops[f + 1]);
        END LOOP;
      ELSE
        result[o] := 0;
        o := o + 1;
        result[o] := slot;
        FOR f IN first .. last BY 6 LOOP
          i := ops[f];
          rate := ops[f + 1];
          frees[i] := greatest(frees[i], slot) + cost / rate;
          ends[i] := greatest(now + levels[i] / rate, frees[i], CASE WHEN blocks[i] < 'Infinity' THEN blocks[i] END);
        END LOOP;
      END IF;
    ELSIF verb = 3 THEN
      FOR f IN first .. last BY 6 LOOP
        i := ops[f];
        rate := ops[f + 1];
        levels[i] := greatest(0, levels[i] - cost);
        IF b >= 0 AND ops[f + 5] > 0 THEN
          frees[i] := least(frees[i], frees[i] - b / rate + greatest(0, now - a));
        ELSIF b >= 0 AND abs(frees[i] - (a + b / rate)) <= @SAME_SLOT@ THEN
          frees[i] := a;
        END IF;
        ends[i] := greatest(now + levels[i] / rate, frees[i], CASE WHEN blocks[i] < 'Infinity' THEN blocks[i] END);
      END LOOP;
    ELSIF verb = 4 THEN
      i := ops[first];
      levels[i] := 0;
      frees[i] := '-Infinity';
      blocks[i] := '-Infinity';
      ends[i] := now;
    ELSIF verb = 5 THEN
      i := ops[first];
      ends[i] := now + @BEAT_LIFE@;
      SELECT count(*) INTO others FROM @table@ t
        WHERE t.key >= 'beat:' AND t.key < 'beat;' AND t.key <> keys[i] AND t.at BETWEEN now - @BEAT_LIFE@ AND now + @BEAT_AHEAD@;
      o := o + 1;
      result[o] := others + 1;
      o := o + 1;
      result[o] := coalesce((SELECT t.level FROM @table@ t WHERE t.key = 'left'), 0);
    END IF;
  END LOOP;

  UPDATE @table@ t
    SET level = u.level, at = u.at, free = u.free, rate = u.rate, blocked = u.blocked, expires = u.ends + @KEEP_MARGIN@
    FROM unnest(keys, levels, ats, frees, rates, blocks, ends) u (key, level, at, free, rate, blocked, ends)
    WHERE t.key = u.key AND u.ends <> 'NaN';
  RETURN result;
END
