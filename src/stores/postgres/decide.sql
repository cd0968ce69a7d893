-- The body of a plpgsql function: decides on a list of operations, all of them at one moment. src/sharing/store.ts says what
-- they mean. An upper-case name between two @ is a constant of ../constants.ts.
--
--   keys  text[]    the instances concerned, distinct, in ascending order (bytes)
--   ops   float8[]  horizon and back in ms, then the operations one after another, each
--                   verb, deadline (ms, like all moments), cost, a, b, count, and for each of count buckets
--                   place in keys, rate (units per ms), capacity, fill (1 or 0), blockFor (ms; 0 none; Infinity drain),
--                   burst (0: none), its own cost (NaN: that of the operation); of a quota 2 in place of fill, and its period
--                   and how long that lasts in place of blockFor and burst;
--                   after the buckets, for verb 2, and for verb 1 with b = 1: by how many ms the slot may be ahead of the
--                   horizon because of the last bucket, and by how many ms it may be after b
--     1 admit     a: maxWait in ms, b: 1 to claim as well
--     2 claim     a: since, b: the slot is not before (-Infinity: at any time)
--     3 giveBack  a: slot, b: the cost it was claimed for (-1: no slot)
--     4 reset
--     5 beat      an instance's heartbeat
--     7 leave     an instance leaves; two places: its own, and that of the number that have left
--     6 exchange  of an upstream; cost: the rate it allows (0: no news), a: how long, b: how long it is paused
--     9 settle
--
-- Leases and promises are decided by src/decider (deciding.ts). Here they count in leased_rate, leased_until, kept and kept_until.
--
-- Returns float8[]: the moment, then for each operation its verdict and more
--   -1 too late, nothing done
--   admit       0, levels, and if claimed the claim's answer
--               1 too-costly, 2 blocked, 3 overflow, 4 max-wait; retryAfterMs (-1: never), which refuse (bits), levels
--   claim       0, slot, from when it may be used, or 1, when each bucket is free
--   giveBack, reset, leave  0
--   settle      0, by how much each bucket has changed, in its level or its schedule, whichever is more
--   beat        0, how many instances there are, how many have left so far, how many have a lower key
--   exchange    0, how long it is paused, the rate, how long that holds (0: there is none)
--
-- What buckets cannot count is no cost: with NaN, an infinite or a negative one an admission is too costly, no claim is granted, and
-- nothing is given back, settled or promised.
--
-- What is new of an upstream for others is sent on the channel for news: `u`, the moment, what exchange returns, the key.
-- Of an upstream `blocked` is when its pause ends, and `free` when its rate ends.
#variable_conflict use_variable
DECLARE
  -- The levels, and while an admission is decided what is occupied.
  levels float8[]; holds float8[]; ats float8[]; frees float8[]; rates float8[]; blocks float8[]; expiries float8[];
  leased_rates float8[]; leased_untils float8[]; leased_rooms float8[];
  -- Room that is kept from newcomers, and until when.
  kepts float8[]; kept_untils float8[];
  -- When they are not needed any more. NaN: not changed. Infinity: as soon as they have drained.
  ends float8[] := array_fill('NaN'::float8, ARRAY[cardinality(keys)]);
  now float8; horizon float8 := ops[1]; back float8 := ops[2];
  result float8[]; o int := 1;
  -- The operation, and where its buckets begin and end in `ops`.
  size int := cardinality(ops); p int := 3; verb int; deadline float8; whole float8; a float8; b float8; first int; last int;
  -- The bucket, and what the operation costs in it.
  i int; cost float8; rate float8; capacity float8; free float8; occupied float8; lasts float8; target float8; moved float8;
  -- Admission.
  reason int; masks float8[]; bit float8; retry float8;
  -- Claim.
  claims bool; slot float8; before float8; earliest float8; furthest float8; refused bool; in_turn float8;
  -- What is news of an upstream, and heartbeats.
  is_new bool; others int; lower_ones bigint;
  -- Whether a slot that is given back is the last one.
  is_last bool;
BEGIN
  -- First the missing rows, then the locks, each in the order of the keys, so that there is no deadlock. If a row is
  -- pruned in between, the whole call fails and is made again.
  INSERT INTO @table@ AS t (key, level, at, free, rate, blocked, expires)
    SELECT k, 0, '-Infinity', '-Infinity', 1, '-Infinity', '-Infinity' FROM unnest(keys) k
    WHERE (SELECT true FROM @table@ t WHERE t.key = k) IS NULL
    ORDER BY k COLLATE "C"
    ON CONFLICT DO NOTHING;
  SELECT array_agg(s.level), array_agg(s.at), array_agg(s.free), array_agg(s.rate),
      array_agg(s.blocked), array_agg(s.expires), array_agg(s.leased_rate), array_agg(s.leased_until),
      array_agg(s.leased_room), array_agg(s.kept), array_agg(s.kept_until)
    INTO levels, ats, frees, rates, blocks, expiries, leased_rates, leased_untils, leased_rooms, kepts, kept_untils
    -- A NaN that an older version has left counts as 0: it would never drain.
    FROM (SELECT coalesce(nullif(t.level, 'NaN'), 0) AS level, t.at, coalesce(nullif(t.free, 'NaN'), '-Infinity') AS free, t.rate,
            t.blocked, t.expires, t.leased_rate, t.leased_until, t.leased_room, coalesce(nullif(t.kept, 'NaN'), 0) AS kept, t.kept_until
          FROM @table@ t
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
      leased_untils[i] := leased_untils[i] + (now - ats[i]);
      kept_untils[i] := kept_untils[i] + (now - ats[i]);
      ends[i] := expiries[i] - @KEEP_MARGIN@ + (now - ats[i]);
      ats[i] := now;
    END IF;
  END LOOP;

  WHILE p < size LOOP
    verb := ops[p];
    deadline := ops[p + 1];
    whole := ops[p + 2];
    cost := whole;
    a := ops[p + 3];
    b := ops[p + 4];
    first := p + 6;
    last := first + ops[p + 5]::int * 7 - 1;
    p := last + 1;
    -- Of a claim how far ahead of the horizon the last bucket may be, and how much later than b. Of one that is given back, too, how
    -- many are not the last of their stack.
    IF verb = 2 OR (verb = 1 AND b = 1) THEN p := p + 3; ELSIF verb = 3 THEN p := p + 1; END IF;
    o := o + 1;
    IF now > deadline THEN
      result[o] := -1;
      CONTINUE;
    END IF;

    IF verb = 6 THEN
      i := ops[first];
      is_new := now + b > greatest(now, blocks[i]) + @SAME_PAUSE@ OR cost > 0 AND (cost <> rates[i] OR now + a > frees[i]);
      blocks[i] := greatest(blocks[i], now + b);
      IF cost > 0 THEN
        rates[i] := cost;
        frees[i] := now + a;
      END IF;
      -- A clock that goes back is noticed by the moment of the last exchange.
      ats[i] := now;
      ends[i] := greatest(blocks[i], frees[i]);
      result := result || ARRAY[0, blocks[i] - now, rates[i], greatest(0, frees[i] - now)];
      IF is_new THEN
        PERFORM pg_notify(@channel@, concat_ws(' ', 'u', now, blocks[i] - now, rates[i], greatest(0, frees[i] - now), keys[i]));
      END IF;
      o := o + 3;
      CONTINUE;
    END IF;

    IF verb = 7 THEN
      i := ops[first];
      IF ats[i] >= now - @BEAT_LIFE@ THEN
        others := ops[first + 7];
        levels[others] := levels[others] + 1;
        -- Longer than any instance takes to ask.
        ends[others] := now + 60000;
      END IF;
      ats[i] := '-Infinity';
      ends[i] := now;
      result[o] := 0;
      CONTINUE;
    END IF;

    FOR f IN first .. last BY 7 LOOP
      i := ops[f];
      -- As openPeriod of src/decider/bucket.ts.
      IF (ops[f + 3] = 2 AND ops[f + 4] > leased_rooms[i]) OR (ops[f + 3] <> 2 AND leased_rooms[i] > @QUOTA_ROOM@) THEN
        levels[i] := 0;
        frees[i] := '-Infinity';
        blocks[i] := '-Infinity';
        leased_rates[i] := 0;
        leased_untils[i] := CASE WHEN ops[f + 3] = 2 THEN now + ops[f + 5] + @QUOTA_BEHIND@ ELSE '-Infinity' END;
        leased_rooms[i] := CASE WHEN ops[f + 3] = 2 THEN ops[f + 4] ELSE 0 END;
        kepts[i] := 0;
        kept_untils[i] := '-Infinity';
        ends[i] := 'Infinity';
      END IF;
      IF ops[f + 3] = 2 THEN
        ops[f + 3] := 0;
        ops[f + 4] := 0;
        ops[f + 5] := 0;
      END IF;
      IF levels[i] > 0 THEN
        levels[i] := greatest(0, levels[i] - (now - ats[i]) * ops[f + 1]
          + leased_rates[i] * greatest(0, least(now, leased_untils[i]) - ats[i]),
          least(levels[i], leased_rooms[i]) - ops[f + 1] * greatest(0, now - leased_untils[i]));
      END IF;
      ats[i] := now;
      IF rates[i] <> ops[f + 1] THEN
        -- The time until the next slot passes at the present rate. This is kept, or it would be done again.
        IF frees[i] > now THEN frees[i] := now + (frees[i] - now) * rates[i] / ops[f + 1]; END IF;
        rates[i] := ops[f + 1];
        ends[i] := 'Infinity';
      END IF;
      IF blocks[i] = 'Infinity' AND levels[i] <= @LEVEL_TOLERANCE@ THEN
        -- It must not come back with the level, so its end is kept.
        blocks[i] := '-Infinity';
        ends[i] := 'Infinity';
      END IF;
    END LOOP;

    claims := verb = 2;
    IF verb = 1 THEN
      masks := '{0,0,0,0}';
      bit := 1;
      FOR f IN first .. last BY 7 LOOP
        i := ops[f];
        cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
        capacity := ops[f + 2];
        -- As occupiedOf of src/decider/bucket.ts.
        holds[i] := levels[i];
        IF leased_untils[i] <= now AND cost < 'Infinity' THEN
          holds[i] := greatest(levels[i], (frees[i] - now - greatest(0, -back)) * ops[f + 1] - cost);
        END IF;
        occupied := holds[i];
        IF now <= kept_untils[i] THEN occupied := occupied + kepts[i]; END IF;
        IF NOT (cost >= 0 AND cost < 'Infinity') OR cost > capacity + @LEVEL_TOLERANCE@ THEN masks[1] := masks[1] + bit; END IF;
        IF blocks[i] > now THEN masks[2] := masks[2] + bit; END IF;
        IF occupied + cost - capacity > @LEVEL_TOLERANCE@ THEN masks[3] := masks[3] + bit; END IF;
        IF (occupied - greatest(0, ops[f + 5] - cost)) / ops[f + 1] - @SAME_TIME@ > a THEN masks[4] := masks[4] + bit; END IF;
        bit := bit * 2;
      END LOOP;
      reason := CASE WHEN masks[1] > 0 THEN 1 WHEN masks[2] > 0 THEN 2 WHEN masks[3] > 0 THEN 3
                     WHEN masks[4] > 0 THEN 4 ELSE 0 END;
      result[o] := reason;
      IF reason = 0 THEN
        FOR f IN first .. last BY 7 LOOP
          i := ops[f];
          cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
          holds[i] := holds[i] + cost;
          levels[i] := holds[i];
        END LOOP;
        claims := b = 1;
      ELSE
        IF reason = 3 THEN
          FOR f IN first .. last BY 7 LOOP
            i := ops[f];
            cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
            occupied := holds[i];
            IF now <= kept_untils[i] THEN occupied := occupied + kepts[i]; END IF;
            IF occupied + cost - ops[f + 2] > @LEVEL_TOLERANCE@ THEN
              IF ops[f + 3] = 1 THEN holds[i] := greatest(holds[i], ops[f + 2]); END IF;
              IF ops[f + 4] > 0 THEN blocks[i] := now + ops[f + 4]; END IF;
              IF ops[f + 3] = 1 OR ops[f + 4] > 0 THEN
                levels[i] := holds[i];
                ends[i] := 'Infinity';
              END IF;
            END IF;
          END LOOP;
        END IF;
        retry := CASE WHEN reason = 1 THEN -1 ELSE 0 END;
        IF reason > 1 THEN
          FOR f IN first .. last BY 7 LOOP
            i := ops[f];
            cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
            rate := ops[f + 1];
            target := CASE WHEN blocks[i] = 'Infinity' THEN 0
              ELSE least(ops[f + 2] - cost, rate * a + greatest(0, ops[f + 5] - cost)) END;
            occupied := holds[i];
            IF now <= kept_untils[i] THEN occupied := occupied + kepts[i]; END IF;
            retry := greatest(retry, (occupied - target) / rate);
            IF blocks[i] < 'Infinity' THEN retry := greatest(retry, blocks[i] - now); END IF;
          END LOOP;
        END IF;
        result[o + 1] := retry;
        result[o + 2] := masks[reason];
        o := o + 2;
      END IF;
      FOR f IN first .. last BY 7 LOOP
        i := ops[f];
        o := o + 1;
        result[o] := holds[i];
        IF reason = 0 THEN ends[i] := 'Infinity'; END IF;
      END LOOP;
      IF claims THEN
        o := o + 1;
        a := 0;
        b := '-Infinity';
      END IF;
    ELSIF verb <> 2 THEN
      result[o] := 0;
    END IF;

    IF claims THEN
      slot := greatest(now - least(a, back), b);
      earliest := greatest(now, b);
      in_turn := greatest(now, slot) + @SAME_SLOT@;
      refused := false;
      furthest := CASE WHEN ops[last + 2] < 'Infinity' THEN b + ops[last + 2] ELSE b END;
      furthest := greatest(now + horizon, least(furthest, now + @MOST_AHEAD@));
      FOR f IN first .. last BY 7 LOOP
        i := ops[f];
        cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
        free := frees[i] - greatest(0, ops[f + 5] - cost) / ops[f + 1];
        -- Those who lease are in turn.
        refused := refused OR NOT (cost >= 0 AND cost < 'Infinity') OR (leased_untils[i] > now AND free > in_turn AND leased_rooms[i] < @QUOTA_ROOM@);
        earliest := greatest(earliest, free);
        before := slot;
        slot := greatest(slot, free);
      END LOOP;
      -- The last bucket would be idle meanwhile.
      refused := refused OR (before > furthest AND free < before);
      IF refused OR slot > furthest + ops[last + 1] OR (ops[last + 2] < 'Infinity' AND slot > b + ops[last + 2]) THEN
        result[o] := 1;
        FOR f IN first .. last BY 7 LOOP
          o := o + 1;
          cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN coalesce(nullif(whole, 'NaN'), 0) ELSE ops[f + 6] END;
          result[o] := greatest(now, frees[ops[f]::int] - greatest(0, ops[f + 5] - cost) / ops[f + 1]);
        END LOOP;
      ELSE
        result[o] := 0;
        result := result || ARRAY[slot, least(slot, earliest)];
        o := o + 2;
        FOR f IN first .. last BY 7 LOOP
          i := ops[f];
          rate := ops[f + 1];
          cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
          ends[i] := 'Infinity';
          -- A quota has no schedule.
          CONTINUE WHEN leased_rooms[i] >= @QUOTA_ROOM@;
          -- One behind it is not free before. It counts in this one from before.
          frees[i] := greatest(frees[i], CASE WHEN f < first + 7 * ops[last + 3] AND ops[f + 5] = 0
            THEN least(slot, greatest(frees[i], slot - greatest(@PERIODS_BEHIND@ / rate, @SHORTEST_GRACE@), now - a))
            ELSE slot END) + cost / rate;
        END LOOP;
      END IF;
    ELSIF verb = 3 THEN
      FOR f IN first .. last BY 7 LOOP
        i := ops[f];
        rate := ops[f + 1];
        cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
        CONTINUE WHEN NOT (cost >= 0 AND cost < 'Infinity');
        levels[i] := greatest(0, levels[i] - cost);
        cost := CASE WHEN b > 0 AND ops[f + 6] <> 'NaN' THEN ops[f + 6] ELSE b END;
        IF b >= 0 AND cost < 'Infinity' THEN
          lasts := cost / rate;
          is_last := frees[i] - (a + greatest(0, ops[f + 5] - cost) / rate + lasts) BETWEEN
            CASE WHEN f < first + 7 * ops[last + 1] AND ops[f + 5] = 0
              THEN -greatest(@PERIODS_BEHIND@ / rate, @SHORTEST_GRACE@) ELSE 0 END - @SAME_SLOT@
            AND greatest(@SAME_SLOT@, least(@SHIFTED@, lasts / 8));
          frees[i] := frees[i] - CASE
            WHEN is_last AND (ops[f + 5] = 0 OR now - a < @STALL@) THEN lasts
            WHEN is_last OR frees[i] <= now + ops[f + 5] / rate THEN greatest(0, lasts - greatest(0, now - a))
            ELSE 0 END;
        END IF;
        ends[i] := 'Infinity';
      END LOOP;
    ELSIF verb = 9 THEN
      FOR f IN first .. last BY 7 LOOP
        i := ops[f];
        rate := ops[f + 1];
        cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
        IF NOT abs(cost) < 'Infinity' THEN cost := 0; END IF;
        capacity := ops[f + 2];
        target := greatest(frees[i], now);
        moved := CASE WHEN leased_rooms[i] > @QUOTA_ROOM@ THEN greatest(-levels[i], cost)
          ELSE greatest((now - target) * rate, least(cost, greatest(0, capacity - (target - now) * rate))) END;
        IF leased_rooms[i] <= @QUOTA_ROOM@ THEN frees[i] := greatest(now, target + moved / rate); END IF;
        o := o + 1;
        result[o] := CASE WHEN cost < 0 THEN least(moved, greatest(-levels[i], cost)) ELSE moved END;
        levels[i] := greatest(0, levels[i] + CASE WHEN cost < 0 THEN cost ELSE moved END);
        ends[i] := 'Infinity';
      END LOOP;
    ELSIF verb = 4 THEN
      i := ops[first];
      kepts[i] := 0;
      kept_untils[i] := '-Infinity';
      levels[i] := 0;
      -- As emptiedBucket of src/decider/bucket.ts.
      frees[i] := now;
      leased_rates[i] := 0;
      leased_untils[i] := '-Infinity';
      leased_rooms[i] := 0;
      blocks[i] := '-Infinity';
      ends[i] := 'Infinity';
    ELSIF verb = 5 THEN
      i := ops[first];
      ends[i] := now + @BEAT_LIFE@;
      SELECT count(*), count(*) FILTER (WHERE t.key < keys[i]) INTO others, lower_ones FROM @table@ t
        WHERE t.key >= 'beat:' AND t.key < 'beat;' AND t.key <> keys[i] AND t.at BETWEEN now - @BEAT_LIFE@ AND now + @BEAT_AHEAD@;
      result := result || ARRAY[others + 1, coalesce((SELECT t.level FROM @table@ t WHERE t.key = 'left'), 0), lower_ones];
      o := o + 3;
    END IF;
  END LOOP;

  UPDATE @table@ t
    SET level = u.level, at = u.at, free = u.free, rate = u.rate, blocked = u.blocked,
      leased_rate = u.leased_rate, leased_until = u.leased_until, leased_room = u.leased_room, kept = u.kept,
      kept_until = u.kept_until,
      expires = @KEEP_MARGIN@ + CASE WHEN u.ends < 'Infinity' THEN u.ends
        ELSE greatest(greatest(u.at, u.leased_until) + u.level / u.rate, u.free, nullif(u.blocked, 'Infinity'), u.kept_until) END
    FROM unnest(keys, levels, ats, frees, rates, blocks, leased_rates, leased_untils, leased_rooms, kepts, kept_untils, ends)
      u (key, level, at, free, rate, blocked, leased_rate, leased_until, leased_room, kept, kept_until, ends)
    WHERE t.key = u.key AND u.ends <> 'NaN';
  RETURN result;
END
