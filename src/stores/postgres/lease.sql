-- The body of a plpgsql function: one report of an instance that leases of a bucket instance. It decides as
-- src/stores/memory/leases.ts does. It only computes: decide.sql keeps what it returns.
--
--   INOUT lease         float8[]  null, or 9 turns, 7 owed, the moment until which it holds, how many instances, classes and slots, lateBy,
--                       beyond, how many are gone, then the arrays declared below, one after the other
--   INOUT leased_until  that moment by the present clock: if that goes back, this goes back with it
--   INOUT level, free   of the bucket instance, at `now`
--   now, instance, largest
--   request             float8[]  place, rate, capacity, fill, blockFor, burst, lead, used, want, minShare, ahead, lacks, late, pace,
--                       count, for each of count classes its priority, weight and cost, and for each returned slot its moment and cost
--   reserved            the room that is kept from newcomers
--   OUT leased_rate
--   OUT answer          float8[]  now, nextAt, until, room, roomRate, roomUntil, spare, level, instances, lateBy, count, and for each of count
--                       slots its moment and cost, how many classes wait in other instances, and for each its priority, weight and cost
#variable_conflict use_variable
DECLARE
  rate float8 := request[2];
  capacity float8 := request[3];
  burst float8 := request[6];
  used float8 := request[8];
  want float8 := request[9];
  min_share float8 := request[10];
  late float8 := request[13];
  pace float8 := request[14];
  classes int := request[15];
  turns float8[] := array_fill(0::float8, '{9}');
  owed float8[] := array_fill(0::float8, '{7}');
  -- The instances.
  n int := 0;
  ids float8[];
  seens float8[];
  nexts float8[];         -- when each reports next; -Infinity: it is gone
  leads float8[];
  latenesses float8[];    -- how late moments are mapped there
  largests float8[];
  rooms float8[];
  room_rates float8[];
  room_untils float8[];
  lacks float8[];
  paces float8[];         -- cost units per ms that each can use at most
  paced_ats float8[];     -- when each can use the next slot at that pace
  -- What waits in those that do not report any more, until when.
  g int := 0;
  gone_ids float8[];
  gone_waits float8[];
  gone_untils float8[];
  -- Their classes.
  m int := 0;
  owners float8[];        -- the place of the instance
  priorities float8[];
  weights float8[];
  parts float8[];         -- turns count by it: the weight; for a forecast what it gets in a frame
  costs float8[];         -- cost units without a slot
  own_turns float8[];
  takes bool[];           -- whether they take slots
  lates bool[];           -- what is kept for them goes to the others
  forecasts int[] := '{}';  -- of each instance, the place of its forecast
  -- Slots that they have not fetched.
  k int := 0;
  holders float8[];       -- the place of the instance
  slot_ats float8[];
  slot_costs float8[];
  -- Slots that were returned.
  spares int := 0;
  spare_ats float8[];
  spare_costs float8[];

  me int;
  is_new bool;
  expecting bool := false;  -- whether slots that nobody has a demand for are given out
  expected float8 := 0;
  roots float8 := 0;
  sharing int := 0;
  frame float8;
  is_full bool;
  is_idle bool;
  apart float8;
  leeway float8;          -- a slot may come so much before the pace of its instance
  by_root float8;
  unexpected float8;
  living int;
  done bool := classes = 0 AND want <= 0;
  pending float8 := 0;
  known float8[] := array_fill(NULL::float8, '{9}');
  given int := 0;
  lead float8;
  slack float8;
  readies float8[];
  latests float8[];
  last_class int := 0;
  top float8 := 0;
  most float8;
  finish float8;
  at float8 := NULL;
  cost float8;
  nobody int[] := array_fill(NULL::int, '{9}');
  firsts int[];
  taker int;
  d int;
  class int;
  behind bool;
  slow bool;              -- somebody is there who can use no slot yet
  early float8;
  usable float8;          -- when an instance can use a slot
  others float8 := 0;
  unused float8;
  spare float8;
  late_by float8 := 0;      -- how late all use their slots
  beyond float8 := 0;       -- the part of the level by which more is known to wait than the meter says
  -- What waits in other instances and has no slot, by class.
  other_weights float8[] := array_fill(0::float8, '{8}');
  other_costs float8[] := array_fill(0::float8, '{8}');
  places int[];
  looked int := 0;
  kept int;
  p int;
BEGIN
  IF lease IS NOT NULL THEN
    turns := lease[1:9];
    owed := lease[10:16];
    n := lease[18];
    m := lease[19];
    k := lease[20];
    late_by := lease[21];
    beyond := lease[22];
    g := lease[23];
    p := 23;
    ids := lease[p + 1 : p + n];
    seens := lease[p + n + 1 : p + 2 * n];
    nexts := lease[p + 2 * n + 1 : p + 3 * n];
    leads := lease[p + 3 * n + 1 : p + 4 * n];
    latenesses := lease[p + 4 * n + 1 : p + 5 * n];
    largests := lease[p + 5 * n + 1 : p + 6 * n];
    rooms := lease[p + 6 * n + 1 : p + 7 * n];
    room_rates := lease[p + 7 * n + 1 : p + 8 * n];
    room_untils := lease[p + 8 * n + 1 : p + 9 * n];
    lacks := lease[p + 9 * n + 1 : p + 10 * n];
    paces := lease[p + 10 * n + 1 : p + 11 * n];
    paced_ats := lease[p + 11 * n + 1 : p + 12 * n];
    p := p + 12 * n;
    gone_ids := lease[p + 1 : p + g];
    gone_waits := lease[p + g + 1 : p + 2 * g];
    gone_untils := lease[p + 2 * g + 1 : p + 3 * g];
    p := p + 3 * g;
    owners := lease[p + 1 : p + m];
    priorities := lease[p + m + 1 : p + 2 * m];
    weights := lease[p + 2 * m + 1 : p + 3 * m];
    costs := lease[p + 3 * m + 1 : p + 4 * m];
    own_turns := lease[p + 4 * m + 1 : p + 5 * m];
    p := p + 5 * m;
    holders := lease[p + 1 : p + k];
    slot_ats := lease[p + k + 1 : p + 2 * k];
    slot_costs := lease[p + 2 * k + 1 : p + 3 * k];
    p := p + 3 * k;
    spares := (cardinality(lease) - p) / 2;
    spare_ats := lease[p + 1 : p + spares];
    spare_costs := lease[p + spares + 1 : p + 2 * spares];
    IF leased_until <> lease[17] THEN
      -- The clock went back: moves all moments with it, as no time has passed.
      FOR i IN 1 .. n LOOP
        seens[i] := seens[i] + (leased_until - lease[17]);
        nexts[i] := nexts[i] + (leased_until - lease[17]);
        room_untils[i] := room_untils[i] + (leased_until - lease[17]);
        paced_ats[i] := paced_ats[i] + (leased_until - lease[17]);
      END LOOP;
      FOR i IN 1 .. k LOOP
        slot_ats[i] := slot_ats[i] + (leased_until - lease[17]);
      END LOOP;
      FOR i IN 1 .. g LOOP
        gone_untils[i] := gone_untils[i] + (leased_until - lease[17]);
      END LOOP;
      spares := 0;
    END IF;
  END IF;

  -- Without what was known to wait beyond it.
  level := greatest(0, level - beyond);
  -- What an instance that is gone has not fetched goes to the others. What it may have admitted stays in the level, and
  -- drains. Where requests wait in it only these go on counting.
  living := n;
  FOR i IN 1 .. n LOOP
    lates[i] := now > nexts[i] + leads[i] + @REPORT_LATE@;
    IF now > nexts[i] + leads[i] + @LEASE_LIFE@ THEN
      nexts[i] := '-Infinity';
      living := living - 1;
      IF lacks[i] > 0 AND request[4] <> 1 THEN
        level := greatest(0, level - rooms[i] - room_rates[i] * greatest(0, least(now, room_untils[i]) - seens[i]));
        g := g + 1;
        gone_ids[g] := ids[i];
        gone_waits[g] := lacks[i];
        gone_untils[g] := now + @BEAT_LIFE@;
      END IF;
    ELSIF ids[i] = instance THEN
      me := i;
    END IF;
  END LOOP;
  -- An instance that comes back tells what waits in it. One that does not leaves nothing.
  kept := 0;
  FOR i IN 1 .. g LOOP
    IF gone_ids[i] = instance OR now > gone_untils[i] THEN
      level := greatest(0, level - gone_waits[i]);
    ELSE
      kept := kept + 1;
      gone_ids[kept] := gone_ids[i];
      gone_waits[kept] := gone_waits[i];
      gone_untils[kept] := gone_untils[i];
    END IF;
  END LOOP;
  g := kept;
  is_new := me IS NULL;
  IF is_new THEN
    n := n + 1;
    living := living + 1;
    me := n;
    ids[me] := instance;
    seens[me] := now;
    nexts[me] := now;
    rooms[me] := 0;
    room_rates[me] := 0;
    room_untils[me] := now;
    lates[me] := false;
    -- The data was lost. Since its last report others may have been given a frame more than it knows.
    IF request[11] > 0 THEN free := greatest(free, now + request[11] + @FRAME@ + @REPORT_SHIFT@); END IF;
  END IF;
  leads[me] := request[7];
  latenesses[me] := late;
  largests[me] := largest;
  lacks[me] := request[12];
  IF is_new OR pace = 'Infinity' THEN paced_ats[me] := '-Infinity'; END IF;
  paces[me] := pace;
  answer := array_fill(0::float8, '{11}');
  kept := 0;
  FOR i IN 1 .. k LOOP
    p := holders[i];
    IF p = me AND NOT lates[me] THEN
      answer[12 + 2 * given] := slot_ats[i];
      answer[13 + 2 * given] := slot_costs[i];
      given := given + 1;
      pending := pending + slot_costs[i];
      lacks[me] := lacks[me] - slot_costs[i];
    ELSIF lates[p] THEN
      spares := spares + 1;
      spare_ats[spares] := slot_ats[i];
      spare_costs[spares] := slot_costs[i];
      IF p <> me THEN lacks[p] := lacks[p] + slot_costs[i]; END IF;
    ELSE
      kept := kept + 1;
      holders[kept] := p;
      slot_ats[kept] := slot_ats[i];
      slot_costs[kept] := slot_costs[i];
    END IF;
  END LOOP;
  k := kept;

  -- Returned slots become spare. Spare slots at the end of the schedule shorten it.
  slack := greatest(0, burst - largest) / rate;
  -- What an instance returns that is not known is of a schedule before a reset.
  kept := CASE WHEN is_new THEN cardinality(request) ELSE 15 + 3 * classes END;
  p := cardinality(request) - 1;
  FOR i IN kept + 1 .. p BY 2 LOOP
    spares := spares + 1;
    spare_ats[spares] := request[i];
    spare_costs[spares] := request[i + 1];
    paced_ats[me] := least(paced_ats[me], request[i]);
  END LOOP;
  IF spares > 1 THEN
    SELECT array_agg(s.at ORDER BY s.at, s.place), array_agg(s.cost ORDER BY s.at, s.place) INTO spare_ats, spare_costs
      FROM unnest(spare_ats[1 : spares], spare_costs[1 : spares]) WITH ORDINALITY s (at, cost, place);
  END IF;
  WHILE NOT is_new AND spares > 0 AND abs(spare_ats[spares] + spare_costs[spares] / rate + slack - free) <= @SAME_SLOT@ LOOP
    free := spare_ats[spares] + slack;
    spares := spares - 1;
  END LOOP;

  -- What it needs now replaces what it needed. What a class was behind is made up for, but no more than a part of a frame.
  kept := 0;
  FOR i IN 1 .. m LOOP
    p := owners[i];
    IF p = me AND NOT lates[me] THEN
      known[priorities[i]::int + 1] := own_turns[i];
    ELSIF NOT lates[p] AND nexts[p] > '-Infinity' THEN
      kept := kept + 1;
      owners[kept] := p;
      priorities[kept] := priorities[i];
      weights[kept] := weights[i];
      costs[kept] := costs[i];
      own_turns[kept] := own_turns[i];
    END IF;
  END LOOP;
  m := kept;
  firsts := nobody;
  FOR i IN 16 .. 15 + 3 * classes BY 3 LOOP
    m := m + 1;
    class := request[i] + 1;
    owners[m] := me;
    priorities[m] := request[i];
    weights[m] := request[i + 1];
    costs[m] := request[i + 2];
    IF request[i] = @FORECAST@ THEN
      weights[m] := costs[m];
      costs[m] := CASE WHEN request[i + 1] > 0 AND costs[m] > @LEVEL_TOLERANCE@ THEN 'Infinity'::float8 ELSE 0 END;
    END IF;
    own_turns[m] := CASE WHEN known[class] IS NULL THEN turns[class] WHEN request[i] = @FORECAST@ THEN known[class]
      ELSE greatest(known[class], turns[class] - rate * @FRAME@ / living / nullif(weights[m], 0)) END;
    firsts[class] := m;
  END LOOP;
  -- Slots that wait for it serve the lowest class first.
  IF pending > 0 THEN
    FOREACH d IN ARRAY firsts LOOP
      CONTINUE WHEN d IS NULL;
      cost := least(pending, costs[d]);
      IF costs[d] < 'Infinity' THEN costs[d] := costs[d] - cost; END IF;
      pending := pending - cost;
    END LOOP;
  END IF;

  -- Counts what it has admitted in place of what was set apart for it.
  unused := rooms[me] + room_rates[me] * greatest(0, least(now, room_untils[me]) - seens[me]) - used;
  level := greatest(0, level - unused);
  unused := greatest(0, unused);
  rooms[me] := 0;
  room_rates[me] := 0;
  seens[me] := now;
  nexts[me] := now;

  -- Gives out the schedule up to the end of the next frame, to those who are there in time for it. First what was returned.
  lead := 0;
  FOR i IN 1 .. n LOOP
    CONTINUE WHEN nexts[i] = '-Infinity';
    lead := greatest(lead, leads[i]);
    top := greatest(top, largests[i]);
  END LOOP;
  FOR i IN 1 .. n LOOP
    readies[i] := nexts[i] + leads[i];
    latests[i] := nexts[i] + leads[i] + lead + @FRAME@;
  END LOOP;
  FOR i IN 1 .. m LOOP
    last_class := greatest(last_class, priorities[i]);
    expecting := expecting OR costs[i] = 'Infinity';
  END LOOP;
  -- Divides a frame among the forecasts: what each expects, then some roots of that, then equal parts. A full frame is divided by the root.
  -- A forecast takes slots if it has a part of the frame.
  parts := weights;
  FOR i IN 1 .. m LOOP
    IF priorities[i] = @FORECAST@ THEN forecasts[owners[i]] := i; END IF;
  END LOOP;
  FOREACH d IN ARRAY forecasts LOOP
    CONTINUE WHEN d IS NULL;
    expected := expected + weights[d];
    roots := roots + sqrt(weights[d]);
    sharing := sharing + 1;
  END LOOP;
  frame := rate * @FRAME@;
  is_full := expected > @FULL_FRAME@ * frame;
  by_root := CASE WHEN is_full THEN frame ELSE least(frame - expected, @SPARE_ROOTS@ * roots) END;
  unexpected := CASE WHEN is_full THEN 0 ELSE frame - expected - by_root END;
  is_idle := unexpected > frame / 2;
  FOREACH d IN ARRAY forecasts LOOP
    CONTINUE WHEN d IS NULL;
    parts[d] := CASE WHEN is_full THEN 0 ELSE weights[d] END + CASE WHEN weights[d] > 0 THEN by_root * sqrt(weights[d]) / roots ELSE 0 END
      + unexpected / sharing;
    cost := coalesce(frame / sharing / nullif(parts[d], 0), 0);
    own_turns[d] := least(greatest(own_turns[d], turns[@FORECAST@ + 1] - cost), turns[@FORECAST@ + 1] + cost);
  END LOOP;
  FOR i IN 1 .. m LOOP
    takes[i] := CASE WHEN priorities[i] = @FORECAST@ THEN expecting AND parts[i] > @LEVEL_TOLERANCE@
      ELSE costs[i] > @LEVEL_TOLERANCE@ END;
  END LOOP;
  most := greatest(top, rate * @FRAME@ / @SLOTS_PER_FRAME@);
  apart := @KEPT_SLOT_GAP@ * most / rate;
  leeway := top / rate / 2;
  IF leeway < @EVEN_GRACE@ THEN leeway := @QUICK_LEEWAY@; END IF;
  slack := greatest(0, burst - top) / rate;
  -- The report of the only one is on its way for a part of the next frame, and nobody else reports meanwhile.
  finish := now + lead + @FRAME@ + CASE WHEN living = 1 THEN lead ELSE 0 END;
  kept := 0;
  LOOP
    IF looked < spares THEN
      looked := looked + 1;
      at := spare_ats[looked];
      CONTINUE WHEN at < now;
    ELSE
      IF early IS NULL THEN
        early := greatest(free - slack, now);
        at := early;
      END IF;
      EXIT WHEN at >= finish;
    END IF;
    -- Who has the slot at this time: of the lowest class, or of one behind to which it is owed.
    firsts := nobody;
    FOR i IN 1 .. m LOOP
      p := owners[i];
      CONTINUE WHEN NOT takes[i] OR at < readies[p] OR at > latests[p] OR at < paced_ats[p] - leeway - @SAME_SLOT@;
      class := priorities[i] + 1;
      d := firsts[class];
      IF d IS NULL OR own_turns[i] < own_turns[d] OR (own_turns[i] = own_turns[d] AND p < owners[d]) THEN
        firsts[class] := i;
      END IF;
    END LOOP;
    taker := NULL;
    FOREACH d IN ARRAY firsts LOOP
      CONTINUE WHEN d IS NULL;
      EXIT WHEN taker IS NOT NULL AND priorities[d] = @FORECAST@;
      EXIT WHEN owed[priorities[taker]::int + 1] + @LEVEL_TOLERANCE@ < least(largests[owners[d]::int], costs[d]);
      taker := d;
    END LOOP;
    -- While half of the frame is free, only a newcomer gets spare slots for what it expects.
    IF early IS NULL AND is_idle AND coalesce(priorities[taker], @FORECAST@) = @FORECAST@ THEN
      taker := CASE WHEN is_new AND takes[forecasts[me]] AND at >= readies[me]
        AND (given = 0 OR at - answer[10 + 2 * given] > @NEWCOMER_STEP@ * apart) THEN forecasts[me] END;
    END IF;
    IF taker IS NULL THEN
      IF early IS NULL THEN
        kept := kept + 1;
        spare_ats[kept] := at;
        spare_costs[kept] := spare_costs[looked];
        CONTINUE;
      END IF;
      early := 'Infinity';
      slow := false;
      FOR i IN 1 .. m LOOP
        p := owners[i];
        usable := greatest(readies[p], paced_ats[p] - leeway);
        IF takes[i] AND latests[p] >= greatest(at, usable) THEN
          early := least(early, usable);
          slow := slow OR at >= readies[p];
        END IF;
      END LOOP;
      EXIT WHEN early <= at OR early >= finish;
      -- Between the slots of those that are slow there are some for others. Else the time until somebody is there passes unused.
      IF early - at < most / rate OR NOT slow THEN
        at := early;
        CONTINUE;
      END IF;
      kept := kept + 1;
      spare_ats[kept] := at;
      spare_costs[kept] := most;
      at := at + most / rate;
      free := at + slack;
      CONTINUE;
    END IF;

    cost := CASE WHEN early IS NULL THEN spare_costs[looked] ELSE least(most, CASE
      WHEN priorities[taker] = @FORECAST@ THEN greatest(top, parts[taker] / @LEAST_SLOTS@) ELSE costs[taker] END) END;
    IF early IS NOT NULL AND is_idle AND priorities[taker] = @FORECAST@ AND (kept = 0 OR at - spare_ats[kept] > apart) THEN
      kept := kept + 1;
      spare_ats[kept] := at;
      spare_costs[kept] := cost;
      at := at + cost / rate;
      free := at + slack;
      CONTINUE;
    END IF;
    class := priorities[taker] + 1;
    FOR i IN 1 .. least(class - 1, 7) LOOP
      owed[i] := greatest(0, owed[i] - (1 - min_share) * cost);
    END LOOP;
    IF class < 8 THEN
      behind := false;
      IF last_class >= class THEN
        FOR i IN 1 .. m LOOP
          behind := priorities[i] >= class AND priorities[i] < @FORECAST@ AND takes[i];
          EXIT WHEN behind;
        END LOOP;
      END IF;
      owed[class] := CASE WHEN behind THEN owed[class] + min_share * cost ELSE 0 END;
    END IF;
    turns[class] := own_turns[taker];
    own_turns[taker] := own_turns[taker] + cost / parts[taker];
    IF priorities[taker] < @FORECAST@ THEN
      costs[taker] := greatest(0, costs[taker] - cost);
      takes[taker] := costs[taker] > @LEVEL_TOLERANCE@;
      -- So that those who got less have the next of the slots that nobody has a demand for.
      d := forecasts[owners[taker]];
      IF parts[d] > 0 THEN own_turns[d] := own_turns[d] + cost / parts[d]; END IF;
    END IF;
    lacks[owners[taker]::int] := lacks[owners[taker]::int] - cost;
    p := owners[taker];
    IF paces[p] < 'Infinity' THEN paced_ats[p] := greatest(paced_ats[p], at) + cost / paces[p]; END IF;
    IF owners[taker] = me THEN
      answer[12 + 2 * given] := at;
      answer[13 + 2 * given] := cost;
      given := given + 1;
    ELSE
      k := k + 1;
      holders[k] := owners[taker];
      slot_ats[k] := at;
      slot_costs[k] := cost;
    END IF;
    IF early IS NOT NULL THEN
      at := at + cost / rate;
      free := at + slack;
    END IF;
  END LOOP;
  spares := kept;

  -- What is known to wait in those that lease, with room that was set apart for those that are not late.
  pending := greatest(0, free - slack - now) * rate;
  FOR i IN 1 .. spares LOOP
    pending := pending - spare_costs[i];
  END LOOP;
  pace := 0;
  FOR i IN 1 .. n LOOP
    IF nexts[i] > '-Infinity' THEN pace := pace + paces[i]; END IF;
  END LOOP;
  -- Time that passes between the slots of those that are slow is nobody's.
  pending := least(pending, greatest(0, free - slack - now) * least(rate, pace));
  FOR i IN 1 .. n LOOP
    IF nexts[i] > '-Infinity' THEN pending := pending + lacks[i]; END IF;
  END LOOP;
  FOR i IN 1 .. g LOOP
    pending := pending + gone_waits[i];
  END LOOP;
  -- A rejected request may have filled it.
  IF request[4] <> 1 AND pending > @LEVEL_TOLERANCE@ THEN
    FOR i IN 1 .. n LOOP
      CONTINUE WHEN nexts[i] = '-Infinity' OR (i <> me AND lates[i]);
      pending := pending + (rooms[i] + room_rates[i] * greatest(0, least(now, room_untils[i]) - seens[i]));
    END LOOP;
    -- If less could wait than slots are dealt out for, slots would lie idle.
    pending := pending - greatest(0, (@FRAME@ + 2 * lead) * rate - greatest(0, capacity - reserved));
  ELSE
    pending := 0;
  END IF;
  beyond := greatest(0, pending - level);
  level := level + beyond;

  IF done THEN
    -- It leaves. What it has not fetched is spare.
    nexts[me] := '-Infinity';
    living := living - 1;
    FOR i IN 0 .. given - 1 LOOP
      spares := spares + 1;
      spare_ats[spares] := answer[12 + 2 * i];
      spare_costs[spares] := answer[13 + 2 * i];
    END LOOP;
    given := 0;
  ELSIF want >= 0 THEN
    -- Sets room apart for it until its next report. Half of what is left stays for those that come.
    -- It keeps what was set apart for it and is unused.
    FOR i IN 1 .. n LOOP
      IF i <> me AND nexts[i] > '-Infinity' THEN others := others + room_rates[i]; END IF;
    END LOOP;
    top := least(0, capacity - level);
    spare := greatest(0, capacity - level - reserved);
    rooms[me] := least(want, spare, greatest(spare / 2, unused, CASE WHEN living = 1 THEN largest ELSE 0 END));
    -- What drains is for those who have booked.
    room_rates[me] := CASE WHEN reserved > 0 THEN 0 ELSE greatest(0, least(rate / living, rate - others) + top / @FRAME@) END;
    level := level + rooms[me];
  END IF;
  lead := 0;
  IF living > 0 THEN late := 0; END IF;
  FOR i IN 1 .. n LOOP
    CONTINUE WHEN nexts[i] = '-Infinity';
    lead := greatest(lead, leads[i]);
    late := greatest(late, latenesses[i]);
  END LOOP;
  -- When the farthest has left, its lateness falls little by little, and the schedule gives up as much time.
  spare := late_by;
  late_by := CASE WHEN living = 0 THEN least(spare, late) ELSE greatest(late, spare - @LATENESS_STEP@::float8 / living) END;
  free := free + greatest(0, spare - late_by);
  answer[1] := now;
  top := 0;
  FOR i IN 1 .. n LOOP
    IF nexts[i] > '-Infinity' THEN top := greatest(top, largests[i]); END IF;
  END LOOP;
  -- Reports of different instances come to be evenly apart.
  early := '-Infinity';
  FOR i IN 1 .. n LOOP
    IF i <> me AND nexts[i] <= now + @FRAME@ THEN early := greatest(early, nexts[i]); END IF;
  END LOOP;
  answer[2] := greatest(now + @FRAME@, least(early + @FRAME@::float8 / greatest(1, living), now + @FRAME@ + @REPORT_SHIFT@));
  answer[2] := greatest(answer[2], free - greatest(0, burst - top) / rate - lead - @FRAME@);
  answer[3] := free;
  IF NOT done THEN
    answer[4] := rooms[me];
    answer[5] := room_rates[me];
    nexts[me] := answer[2];
    room_untils[me] := answer[2] + leads[me] + @LEASE_LIFE@;
  END IF;
  answer[6] := answer[2] + leads[me] + @LEASE_LIFE@;
  -- Negative: more waits than fits.
  answer[7] := least(capacity - level, greatest(0, capacity - level - reserved));

  FOR i IN 1 .. m LOOP
    CONTINUE WHEN owners[i] = me OR priorities[i] = @FORECAST@ OR costs[i] <= @LEVEL_TOLERANCE@;
    class := priorities[i] + 1;
    other_weights[class] := other_weights[class] + weights[i];
    other_costs[class] := other_costs[class] + costs[i];
  END LOOP;

  -- Those that are gone are left out.
  kept := 0;
  leased_rate := 0;
  leased_until := '-Infinity';
  others := 0;
  FOR i IN 1 .. n LOOP
    CONTINUE WHEN nexts[i] = '-Infinity';
    kept := kept + 1;
    places[i] := kept;
    leased_rate := leased_rate + room_rates[i];
    leased_until := greatest(leased_until, nexts[i] + leads[i] + @LEASE_LIFE@);
    -- Room that was set apart, and what that has grown by since.
    others := others + rooms[i] + room_rates[i] * greatest(0, least(now, room_untils[i]) - seens[i]);
    CONTINUE WHEN kept = i;
    ids[kept] := ids[i];
    seens[kept] := seens[i];
    nexts[kept] := nexts[i];
    leads[kept] := leads[i];
    latenesses[kept] := latenesses[i];
    largests[kept] := largests[i];
    rooms[kept] := rooms[i];
    room_rates[kept] := room_rates[i];
    room_untils[kept] := room_untils[i];
    lacks[kept] := lacks[i];
    paces[kept] := paces[i];
    paced_ats[kept] := paced_ats[i];
  END LOOP;
  IF kept < n THEN
    FOR i IN 1 .. m LOOP
      owners[i] := places[owners[i]::int];
    END LOOP;
    FOR i IN 1 .. k LOOP
      holders[i] := places[holders[i]::int];
    END LOOP;
  END IF;
  -- Where it gets less room than it asks for, what waits is why. Who only looks, or leaves, is told what waits as well.
  answer[8] := greatest(0, level - others - CASE WHEN done OR answer[4] < want - @LEVEL_TOLERANCE@ THEN 0 ELSE beyond END);
  answer[9] := kept;
  answer[10] := late_by;
  answer[11] := given;
  answer := answer[1 : 11 + 2 * given] || 0::float8;
  FOR i IN 1 .. 8 LOOP
    CONTINUE WHEN other_costs[i] = 0;
    answer := answer || ARRAY[i - 1, other_weights[i], other_costs[i]];
    answer[12 + 2 * given] := answer[12 + 2 * given] + 1;
  END LOOP;
  lease := CASE WHEN kept > 0 THEN turns || owed || ARRAY[leased_until, kept, m, k, late_by, beyond, g]
    || ids[1 : kept] || seens[1 : kept] || nexts[1 : kept] || leads[1 : kept] || latenesses[1 : kept]
    || largests[1 : kept] || rooms[1 : kept] || room_rates[1 : kept] || room_untils[1 : kept]
    || lacks[1 : kept] || paces[1 : kept] || paced_ats[1 : kept] || gone_ids[1 : g] || gone_waits[1 : g] || gone_untils[1 : g]
    || owners[1 : m] || priorities[1 : m] || weights[1 : m] || costs[1 : m] || own_turns[1 : m]
    || holders[1 : k] || slot_ats[1 : k] || slot_costs[1 : k] || spare_ats[1 : spares] || spare_costs[1 : spares] END;
END
