-- The body of a plpgsql function: decides on a list of operations, all of them at one moment. src/core/store.ts says what
-- they mean. An upper-case name between two @ is a constant of ../constants.ts.
--
--   keys  text[]    the instances concerned, distinct, in ascending order (bytes)
--   ops   float8[]  horizon and back in ms, then the operations one after another, each
--                   verb, deadline (ms, like all moments), cost, a, b, count, and for each of count buckets
--                   place in keys, rate (units per ms), capacity, fill (1 or 0), blockFor (ms; 0 none; Infinity drain),
--                   burst (0: none), its own cost (NaN: that of the operation);
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
--     10 promise  a: maxWait, b: fit; after the bucket: client, booking (0: none), more
--     11 admit that claims a booking, and no slot. a: maxWait, b: the place of its bucket, from 0; after the buckets: client, booking
--     8 lease     cost: the largest that waits, a: the instance, b: how many numbers of lease.sql follow the bucket
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
--   promise     0, ms until the client is to come back, booking, its window, 1 if it was made, more that is promised
--   lease       0, and the answer of lease.sql
--
-- What buckets cannot count is no cost: with NaN, an infinite or a negative one an admission is too costly, no claim is granted, and
-- nothing is given back, settled or promised.
--
-- What is new of an upstream for others is sent on the channel for news: `u`, the moment, what exchange returns, the key.
-- Of an upstream `blocked` is when its pause ends, and `free` when its rate ends.
#variable_conflict use_variable
DECLARE
  levels float8[];
  ats float8[];
  frees float8[];
  rates float8[];
  blocks float8[];
  expiries float8[];
  leased_rates float8[];
  leased_untils float8[];
  -- Room that is kept from newcomers, and until when.
  kepts float8[];
  kept_untils float8[];
  -- A gap in the schedule, before `free` (memory/schedule.ts). -Infinity: there is none.
  gap_froms float8[];
  gap_untils float8[];
  -- When they are not needed any more. NaN: not changed. Infinity: as soon as they have drained.
  ends float8[] := array_fill('NaN'::float8, ARRAY[cardinality(keys)]);
  now float8;
  horizon float8 := ops[1];
  furthest float8;
  back float8 := ops[2];
  result float8[];
  o int := 1;
  p int := 3;
  size int := cardinality(ops);
  verb int;
  deadline float8;
  whole float8;
  cost float8;  -- in the bucket
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
  earliest float8;
  far bool;
  refused bool;
  in_turn float8;
  is_new bool;
  rate float8;
  capacity float8;
  target float8;
  moved float8;
  others int;
  known float8[];
  leased record;
  lower_ones bigint;
  i int;
  -- Of a booking that is claimed: its bucket, its promise, and whether it is due.
  claimed int;
  booked record;
  due bool;
  occupied float8;
  reserved float8;
  promised record;
  room float8;
  lasts float8;
  free float8;
  before float8;
  more float8;
  after float8;
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
      array_agg(s.kept), array_agg(s.kept_until), array_agg(s.gap_from), array_agg(s.gap_until)
    INTO levels, ats, frees, rates, blocks, expiries, leased_rates, leased_untils, kepts, kept_untils, gap_froms, gap_untils
    -- A NaN that an older version has left counts as 0: it would never drain.
    FROM (SELECT coalesce(nullif(t.level, 'NaN'), 0) AS level, t.at, coalesce(nullif(t.free, 'NaN'), '-Infinity') AS free, t.rate,
            t.blocked, t.expires, t.leased_rate, t.leased_until, coalesce(nullif(t.kept, 'NaN'), 0) AS kept, t.kept_until,
            t.gap_from, t.gap_until FROM @table@ t
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
      IF kept_untils[i] > '-Infinity' THEN
        kept_untils[i] := kept_untils[i] + (now - ats[i]);
        UPDATE @promises@ p SET at = p.at + (now - ats[i]), until = p.until + (now - ats[i]) WHERE p.key = keys[i];
      END IF;
      gap_untils[i] := '-Infinity';
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
    IF verb = 8 THEN p := p + b::int; END IF;
    -- How far ahead of the horizon the last bucket may be, and how much later than b.
    IF verb = 2 OR (verb = 1 AND b = 1) THEN p := p + 2; END IF;
    IF verb = 10 THEN p := p + 3; END IF;
    IF verb = 11 THEN p := p + 2; END IF;
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
      IF levels[i] > 0 THEN
        levels[i] := greatest(0, levels[i] - (now - ats[i]) * ops[f + 1]
          + leased_rates[i] * greatest(0, least(now, leased_untils[i]) - ats[i]));
      END IF;
      ats[i] := now;
      IF rates[i] <> ops[f + 1] THEN
        -- The time until the next slot passes at the present rate. This is kept, or it would be done again.
        IF frees[i] > now THEN frees[i] := now + (frees[i] - now) * rates[i] / ops[f + 1]; END IF;
        rates[i] := ops[f + 1];
        gap_untils[i] := '-Infinity';
        ends[i] := 'Infinity';
      END IF;
      IF blocks[i] = 'Infinity' AND levels[i] <= @LEVEL_TOLERANCE@ THEN
        -- It must not come back with the level, so its end is kept.
        blocks[i] := '-Infinity';
        ends[i] := 'Infinity';
      END IF;
    END LOOP;

    claims := verb = 2;
    claimed := 0;
    IF verb = 11 THEN
      i := ops[first + 7 * b::int];
      cost := ops[first + 7 * b::int + 6];
      IF whole = 0 OR cost = 'NaN' THEN cost := whole; END IF;
      SELECT p.client, p.at, p.until INTO booked FROM @promises@ p
        WHERE p.key = keys[i] AND kept_untils[i] > '-Infinity'
          AND p.client = ops[last + 1] AND p.booking = ops[last + 2] AND abs(p.cost - cost) <= @LEVEL_TOLERANCE@;
      IF FOUND THEN
        claimed := i;
        due := booked.at <= now + @SAME_WAIT@ AND now <= booked.until;
      END IF;
    END IF;
    IF verb = 1 OR verb = 11 THEN
      masks := '{0,0,0,0}';
      bit := 1;
      FOR f IN first .. last BY 7 LOOP
        i := ops[f];
        cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
        capacity := ops[f + 2];
        occupied := levels[i];
        IF now <= kept_untils[i] AND NOT (i = claimed AND due) THEN occupied := occupied + kepts[i]; END IF;
        IF NOT (cost >= 0 AND cost < 'Infinity') OR cost > capacity + @LEVEL_TOLERANCE@ THEN masks[1] := masks[1] + bit; END IF;
        IF blocks[i] > now THEN masks[2] := masks[2] + bit; END IF;
        IF occupied + cost - capacity > @LEVEL_TOLERANCE@ THEN masks[3] := masks[3] + bit; END IF;
        IF (occupied - greatest(0, ops[f + 5] - cost)) / ops[f + 1] - @SAME_WAIT@ > a THEN masks[4] := masks[4] + bit; END IF;
        bit := bit * 2;
      END LOOP;
      reason := CASE WHEN masks[1] > 0 THEN 1 WHEN masks[2] > 0 THEN 2 WHEN masks[3] > 0 THEN 3
                     WHEN masks[4] > 0 THEN 4 ELSE 0 END;
      result[o] := reason;
      IF reason = 0 THEN
        FOR f IN first .. last BY 7 LOOP
          i := ops[f];
          cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
          levels[i] := levels[i] + cost;
        END LOOP;
        claims := verb = 1 AND b = 1;
      ELSE
        IF reason = 3 THEN
          FOR f IN first .. last BY 7 LOOP
            i := ops[f];
            cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
            occupied := levels[i];
            IF now <= kept_untils[i] AND NOT (i = claimed AND due) THEN occupied := occupied + kepts[i]; END IF;
            IF occupied + cost - ops[f + 2] > @LEVEL_TOLERANCE@ THEN
              IF ops[f + 3] = 1 THEN levels[i] := greatest(levels[i], ops[f + 2]); END IF;
              IF ops[f + 4] > 0 THEN blocks[i] := now + ops[f + 4]; END IF;
              IF ops[f + 3] = 1 OR ops[f + 4] > 0 THEN
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
            occupied := levels[i];
            IF now <= kept_untils[i] AND NOT (i = claimed AND due) THEN occupied := occupied + kepts[i]; END IF;
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
        result[o] := levels[i];
        IF reason = 0 THEN ends[i] := 'Infinity'; END IF;
      END LOOP;
      IF reason = 0 AND claimed > 0 THEN
        i := claimed;
        DELETE FROM @promises@ p WHERE p.key = keys[i] AND p.client = booked.client;
        -- What is kept from newcomers now. memory/promises.ts says why it is enough.
        SELECT coalesce(sum(p.cost) FILTER (WHERE p.booking <> 0), 0) AS booked, max(p.until) AS until,
            coalesce(max(p.cost) FILTER (WHERE p.booking <> 0), 0) AS largest
          INTO promised FROM @promises@ p WHERE p.key = keys[i];
        kepts[i] := least(promised.booked, ops[first + 7 * b::int + 2] / 2, rates[i] * @LONGEST_WINDOW@ + promised.largest);
        kept_untils[i] := coalesce(promised.until, '-Infinity');
        ends[i] := 'Infinity';
      END IF;
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
        target := frees[i] - greatest(0, ops[f + 5] - cost) / ops[f + 1];
        -- Those who lease are in turn.
        refused := refused OR NOT (cost >= 0 AND cost < 'Infinity') OR (leased_untils[i] > now AND target > in_turn);
        earliest := greatest(earliest, target);
      END LOOP;
      -- The first moment at which a slot is possible in all places, first without the last one.
      far := NULL;
      LOOP
        before := slot;
        FOR f IN first .. last - CASE WHEN far IS NULL THEN 7 ELSE 0 END BY 7 LOOP
          i := ops[f];
          cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
          free := frees[i] - greatest(0, ops[f + 5] - cost) / ops[f + 1];
          CONTINUE WHEN slot >= free;
          lasts := greatest(now, slot, gap_froms[i]);
          -- Slots of leases are dealt out from the end, and a burst is let through at once. Slots that go with leased ones are at their moments.
          slot := CASE WHEN b = '-Infinity' AND ops[f + 5] = 0 AND leased_untils[i] <= now
              AND lasts + cost / ops[f + 1] <= least(gap_untils[i], frees[i]) + @SAME_SLOT@ THEN lasts ELSE free END;
        END LOOP;
        CONTINUE WHEN slot > before;
        EXIT WHEN far IS NOT NULL;
        -- The last bucket would be idle meanwhile.
        far := slot > greatest(furthest, target);
      END LOOP;
      IF refused OR far OR slot > furthest + ops[last + 1] OR (ops[last + 2] < 'Infinity' AND slot > b + ops[last + 2]) THEN
        result[o] := 1;
        FOR f IN first .. last BY 7 LOOP
          o := o + 1;
          cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN coalesce(nullif(whole, 'NaN'), 0) ELSE ops[f + 6] END;
          i := ops[f];
          free := frees[i] - greatest(0, ops[f + 5] - cost) / ops[f + 1];
          slot := greatest(now - least(a, back), b);
          lasts := greatest(now, slot, gap_froms[i]);
          IF slot < free AND b = '-Infinity' AND ops[f + 5] = 0 AND leased_untils[i] <= now
              AND lasts + cost / ops[f + 1] <= least(gap_untils[i], frees[i]) + @SAME_SLOT@ THEN
            free := lasts;
          END IF;
          result[o] := greatest(now, free);
        END LOOP;
      ELSE
        result[o] := 0;
        o := o + 1;
        result[o] := slot;
        o := o + 1;
        earliest := least(slot, earliest);
        result[o] := earliest;
        FOR f IN first .. last BY 7 LOOP
          i := ops[f];
          rate := ops[f + 1];
          cost := CASE WHEN whole = 0 OR ops[f + 6] = 'NaN' THEN whole ELSE ops[f + 6] END;
          lasts := cost / rate;
          ends[i] := 'Infinity';
          IF slot < frees[i] - greatest(0, ops[f + 5] - cost) / rate THEN
            IF slot - gap_froms[i] > gap_untils[i] - (slot + lasts) THEN gap_untils[i] := slot;
            ELSE gap_froms[i] := slot + lasts; END IF;
            CONTINUE;
          END IF;
          before := greatest(now, frees[i]);
          IF b = '-Infinity' AND ops[f + 5] = 0 AND leased_untils[i] <= now
              AND earliest - before >= greatest(lasts, gap_untils[i] - greatest(now, gap_froms[i])) THEN
            gap_froms[i] := before;
            gap_untils[i] := earliest;
          ELSIF lasts > gap_untils[i] - greatest(now, gap_froms[i]) THEN
            -- A smaller cost that comes later must not overtake.
            gap_untils[i] := '-Infinity';
          END IF;
          frees[i] := greatest(frees[i], slot) + lasts;
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
          frees[i] := frees[i] - CASE
            WHEN abs(frees[i] - (a + greatest(0, ops[f + 5] - cost) / rate + lasts)) <= @SAME_SLOT@ THEN lasts
            WHEN frees[i] <= now + ops[f + 5] / rate THEN greatest(0, lasts - greatest(0, now - a))
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
        moved := greatest((now - target) * rate, least(cost, greatest(0, capacity - (target - now) * rate)));
        frees[i] := greatest(now, target + moved / rate);
        -- What was settled moves the schedule, and it has no gap any more.
        gap_untils[i] := '-Infinity';
        o := o + 1;
        result[o] := CASE WHEN cost < 0 THEN least(moved, greatest(-levels[i], cost)) ELSE moved END;
        levels[i] := greatest(0, levels[i] + CASE WHEN cost < 0 THEN cost ELSE moved END);
        ends[i] := 'Infinity';
      END LOOP;
    ELSIF verb = 10 THEN
      i := ops[first];
      rate := ops[first + 1];
      capacity := ops[first + 2];
      DELETE FROM @promises@ p
        WHERE p.key = keys[i] AND (kept_untils[i] = '-Infinity' OR p.booking = 0 AND p.at <= now OR p.booking <> 0 AND p.until < now);
      -- Of the promises without bookings, which are one row, those are over whose moments have come.
      UPDATE @promises@ p SET cost = rate * (p.at - now)
        WHERE p.key = keys[i] AND p.booking = 0 AND p.cost > rate * (p.at - now);
      SELECT p.booking, p.cost, p.at, p.until INTO booked FROM @promises@ p
        WHERE p.key = keys[i] AND p.client = ops[last + 1] AND p.booking <> 0;
      is_new := true;
      IF FOUND THEN
        IF booked.at > now OR booked.until >= now + b THEN
          is_new := false;
          after := CASE WHEN booked.at > now THEN booked.at - now ELSE b END;
        ELSE
          DELETE FROM @promises@ p WHERE p.key = keys[i] AND p.client = ops[last + 1];
        END IF;
      END IF;
      more := 0;
      o := o + 1;
      IF is_new THEN
        SELECT count(*) AS number, coalesce(sum(p.cost), 0) AS total,
            coalesce(sum(p.cost) FILTER (WHERE p.booking <> 0), 0) AS booked, coalesce(max(p.at), '-Infinity') AS last
          INTO promised FROM @promises@ p WHERE p.key = keys[i];
        room := capacity - promised.total - cost;
        IF promised.number >= @MOST_PROMISES@ OR NOT (cost >= 0 AND cost < 'Infinity') OR room < -@LEVEL_TOLERANCE@ THEN
          result := result || ARRAY[greatest(b, promised.last - now), 0, 0, 0, 0];
          is_new := NULL;
        ELSE
          more := least(ops[last + 3], greatest(0, room));
          room := least(capacity, rate * a + greatest(0, ops[first + 5] - cost) + cost);
          lasts := (room / 2 - cost) / rate;
          IF ops[last + 2] = 0 OR ops[first + 3] = 1 OR ops[first + 4] > 0 OR lasts < cost / rate THEN lasts := 0; END IF;
          lasts := least(lasts, @LONGEST_WINDOW@);
          IF lasts < @SHORTEST_WINDOW@ THEN lasts := 0; END IF;
          reserved := CASE WHEN now <= kept_untils[i] THEN kepts[i] ELSE 0 END;
          -- What is leased may still grow. All that is booked fits before what is booked.
          IF lasts > 0 THEN
            reserved := leased_rates[i] * greatest(0, leased_untils[i] - now) + promised.booked;
          END IF;
          slot := greatest(promised.last + cost / rate, now + greatest(0, levels[i] + reserved + cost - room) / rate);
          -- A client that something else delays for longer must not delay the others.
          IF b - (slot - now) > greatest(cost / rate, @FRAME@) THEN lasts := 0; ELSE slot := greatest(slot, now + b); END IF;
          after := slot - now;
          IF lasts > 0 THEN
            INSERT INTO @promises@ AS p (key, client, booking, cost, at, until)
              VALUES (keys[i], ops[last + 1], ops[last + 2], cost, slot, slot + lasts)
              RETURNING p.booking, p.cost, p.at, p.until INTO booked;
            more := 0;
          ELSE
            slot := slot + more / rate;
            INSERT INTO @promises@ AS p (key, client, booking, cost, at, until) VALUES (keys[i], 0, 0, cost + more, slot, slot)
              ON CONFLICT (key, client) DO UPDATE
                SET cost = p.cost + excluded.cost, at = excluded.at, until = excluded.until
              RETURNING p.booking, p.cost, p.at, p.until INTO booked;
          END IF;
        END IF;
      END IF;
      IF is_new IS NOT NULL THEN
        IF booked.booking = 0 OR abs(booked.cost - cost) > @LEVEL_TOLERANCE@ THEN result := result || ARRAY[after, 0, 0, 1, more];
        ELSE result := result || ARRAY[after, booked.booking, greatest(0, booked.until - now - after), 1, 0]; END IF;
      END IF;
      o := o + 4;
        -- What is kept from newcomers now. memory/promises.ts says why it is enough.
        SELECT coalesce(sum(p.cost) FILTER (WHERE p.booking <> 0), 0) AS booked, max(p.until) AS until,
            coalesce(max(p.cost) FILTER (WHERE p.booking <> 0), 0) AS largest
          INTO promised FROM @promises@ p WHERE p.key = keys[i];
        kepts[i] := least(promised.booked, ops[first + 2] / 2, rates[i] * @LONGEST_WINDOW@ + promised.largest);
        kept_untils[i] := coalesce(promised.until, '-Infinity');
        ends[i] := 'Infinity';
    ELSIF verb = 4 THEN
      i := ops[first];
      kepts[i] := 0;
      kept_untils[i] := '-Infinity';
      DELETE FROM @promises@ p WHERE p.key = keys[i];
      levels[i] := 0;
      frees[i] := '-Infinity';
      leased_rates[i] := 0;
      leased_untils[i] := '-Infinity';
      gap_untils[i] := '-Infinity';
      blocks[i] := '-Infinity';
      ends[i] := 'Infinity';
    ELSIF verb = 8 THEN
      i := ops[first];
      known := NULL;
      IF leased_untils[i] > '-Infinity' THEN SELECT t.lease INTO known FROM @table@ t WHERE t.key = keys[i]; END IF;
      SELECT * INTO leased FROM @lease@(known, leased_untils[i], levels[i], frees[i], now, a, coalesce(nullif(cost, 'NaN'), 0),
        ops[first : first + 5] || array_replace(ops[first + 7 : p - 1], 'NaN'::float8, 0::float8),
        CASE WHEN now <= kept_untils[i] THEN kepts[i] ELSE 0 END);
      levels[i] := leased.level;
      frees[i] := leased.free;
      leased_rates[i] := leased.leased_rate;
      leased_untils[i] := leased.leased_until;
      UPDATE @table@ t SET lease = leased.lease WHERE t.key = keys[i];
      ends[i] := 'Infinity';
      result := result || leased.answer;
      o := cardinality(result);
    ELSIF verb = 5 THEN
      i := ops[first];
      ends[i] := now + @BEAT_LIFE@;
      SELECT count(*), count(*) FILTER (WHERE t.key < keys[i]) INTO others, lower_ones FROM @table@ t
        WHERE t.key >= 'beat:' AND t.key < 'beat;' AND t.key <> keys[i] AND t.at BETWEEN now - @BEAT_LIFE@ AND now + @BEAT_AHEAD@;
      o := o + 1;
      result[o] := others + 1;
      o := o + 1;
      result[o] := coalesce((SELECT t.level FROM @table@ t WHERE t.key = 'left'), 0);
      o := o + 1;
      result[o] := lower_ones;
    END IF;
  END LOOP;

  UPDATE @table@ t
    SET level = u.level, at = u.at, free = u.free, rate = u.rate, blocked = u.blocked,
      leased_rate = u.leased_rate, leased_until = u.leased_until, kept = u.kept, kept_until = u.kept_until,
      gap_from = u.gap_from, gap_until = u.gap_until,
      expires = @KEEP_MARGIN@ + CASE WHEN u.ends < 'Infinity' THEN u.ends
        ELSE greatest(greatest(u.at, u.leased_until) + u.level / u.rate, u.free, nullif(u.blocked, 'Infinity'), u.kept_until) END
    FROM unnest(keys, levels, ats, frees, rates, blocks, leased_rates, leased_untils, kepts, kept_untils, gap_froms, gap_untils, ends)
      u (key, level, at, free, rate, blocked, leased_rate, leased_until, kept, kept_until, gap_from, gap_until, ends)
    WHERE t.key = u.key AND u.ends <> 'NaN';
  RETURN result;
END
