-- Carries out a list of operations on bucket instances, in order, as one atomic step. src/core/store.ts says what each
-- verb means. wire.ts writes the input and reads the output. A name between two @ is a constant of ../../constants.ts.
--
-- KEYS      of bucket instances, of what is leased of one or promised of one, of a registry, or of upstreams
-- ARGV[1]   little-endian doubles:
--             deadline    ms of this clock. Later, nothing is done: nobody waits for the call any more.
--             earliest    ms of this clock. Before, nothing is done: the clock was set back, and the deadline with it.
--             horizon     ms, how far ahead a slot may be claimed
--             back        ms, how far it may lie back. Negative: it has to lie ahead.
--             count, and that many operations of
--               verb, cost, x, slot, n, m, n places of
--                 key (its place in KEYS), rate (cost units per ms), capacity (cost units), fill (1: an overflow fills
--                 it), blockFor (ms; 0: none; infinite: until it has drained), burst (cost units; 0: none), its own cost
--                 (NaN: that of the operation)
--               and m numbers
--           x     admission: maxWait (ms); claim: since (ms); giveBack: slotCost; lease: lead (ms); beat and leave: the
--                 place of the id in ARGV, where the places are the registry and the number that have left
--           slot  ms of this clock, -infinite: none; claim: the slot is not before
--           exchange: cost is the rate, x how long it holds, slot how long the upstream is paused; a second place is the
--                 channel for news
--           claims, also with admissions, have three numbers: ms by which slots may be ahead of the horizon, by which the
--                 last place may be ahead besides, and by which the slot may be after the one it is not before
--           lease: cost is the largest. The places are the bucket and what is leased of it. Numbers: the instance, used,
--                 want, minShare, ahead, lacks, late, pace, how many classes, for each priority, weight and cost, for each
--                 returned slot its time and cost
--           promise: x is maxWait. The places are the bucket and what is promised of it. Numbers: client, booking (0: none), fit,
--                 more
--           admission that claims a booking: behind the places of the stack that of what is promised of one of them. Numbers: which one
--                 (from 0), client, booking. It claims no slot
-- ARGV[2..] ids of instances
--
-- Answers doubles: the time in ms of this clock, 1 or the reason why nothing was done (0: late, -1: early), and the answer
-- of each operation:
--   admission    1, the level of each place; or 0, reason, retryAfter in ms (-1: never), the level of each place, and for
--                each 1 if it refuses; reasons are numbered 1 too-costly, 2 blocked, 3 overflow, 4 max-wait
--   claim        1, slot, from when it may be used; or 0, free of each place; after the levels if it came with an admission
--   giveBack, reset, leave  nothing
--   settle       by how much each place has changed, in its level or its schedule, whichever is more
--   lease        nextAt, until, room, roomRate, roomFrom, roomUntil, spare, level, instances, lateBy, how many slots,
--                for each its time and cost, how many classes wait in other instances, for each priority, weight and cost
--   promise      ms until the client is to come back, booking, its window, 1 if it was made, more that is promised
--   beat         how many there are, how many have left, how many of those that are there have a lower id
--   exchange     see exchange.lua
--
-- What buckets cannot count is no cost: with NaN, an infinite or a negative one an admission is too costly, no claim is granted, and
-- nothing is given back, settled or promised.
--
-- A bucket is kept as five doubles: level, at, free (when what was granted has drained), blocked (0: not; infinite: until
-- drained), and the rate that `free` was counted with. One that is leased has two more: the part of the rate by which the level
-- does not drain, and until when. One that has promised something has two more: the room that is kept from newcomers, and until
-- when. One that has a gap in its schedule (memory/schedule.ts) has two more, its begin and end, and a byte. lease.lua and promise.lua
-- say how leases and promises are kept.

local function clock()
  local time = redis.call('TIME')
  return (tonumber(time[1]) - @CLOCK_ORIGIN@) * 1000 + tonumber(time[2]) / 1000
end
local now = clock()

local ADMIT, ADMIT_AND_CLAIM, JUDGE, CLAIM, GIVE_BACK, RESET, BEAT, EXCHANGE, LEAVE, LEASE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local SETTLE, PROMISE, ADMIT_BOOKED = 11, 12, 13
local LEVEL_TOLERANCE, SAME_WAIT, SAME_SLOT = @LEVEL_TOLERANCE@, @SAME_WAIT@, @SAME_SLOT@
local BEAT_LIFE, BEAT_AHEAD, KEEP_MARGIN = @BEAT_LIFE@, @BEAT_AHEAD@, @KEEP_MARGIN@
-- Numbers that are packed in one call: they are on the stack.
local AT_ONCE = 4000
-- ms, the longest life of a key.
local LONGEST = 1e13
local DRAINED = math.huge
local max, min = math.max, math.min

local input = { struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1]) }
local horizon, back, count = input[3], input[4], input[5]
if now > input[1] then return struct.pack('<dd', now, 0) end
if now < input[2] then return struct.pack('<dd', now, -1) end

local stored = #KEYS > 0 and redis.call('MGET', unpack(KEYS)) or {}
local levels, frees, blocks, rates = {}, {}, {}, {}
-- The part of the rate at which room grows in leases, and when they end. 0: it is not leased.
local leased_rates, leased_untils = {}, {}
-- Room that is kept from newcomers, and until when. 0: nothing is promised.
local kepts, kept_untils = {}, {}
-- A gap in the schedule, before `free`. 0: there is none.
local gap_froms, gap_untils = {}, {}
local changed, forgotten = {}, {}
-- Opened, by the key of the bucket.
local leases, promises = {}, {}
local output, length = { now, 1 }, 2

local function pack(numbers, length)
  local packed = {}
  for first = 1, length, AT_ONCE do
    local last = min(length, first + AT_ONCE - 1)
    packed[#packed + 1] = struct.pack('<' .. string.rep('d', last - first + 1), unpack(numbers, first, last))
  end
  return table.concat(packed)
end

local function unpack_all(packed)
  local numbers, count = {}, #packed / 8
  for first = 1, count, AT_ONCE do
    local some = min(AT_ONCE, count - first + 1)
    local piece = { struct.unpack('<' .. string.rep('d', some), packed, 8 * first - 7) }
    for place = 1, some do numbers[first + place - 1] = piece[place] end
  end
  return numbers
end

local function tell(number)
  length = length + 1
  output[length] = number
end

local function is_blocked(key)
  if blocks[key] == DRAINED then return levels[key] > LEVEL_TOLERANCE end
  return now < blocks[key]
end

-- The time until the next slot passes at the present rate. This is kept, or it would be done again.
local function apply_rate(key, rate)
  if rates[key] == rate then return end
  if frees[key] > now then frees[key] = now + (frees[key] - now) * rates[key] / rate end
  rates[key] = rate
  gap_untils[key] = 0
  changed[key] = true
end

-- A NaN that an older version has left counts as 0: it would never drain.
local function number(value)
  return value == value and value or 0
end

-- Brings a bucket to the present.
local function open(key, rate)
  if levels[key] then return apply_rate(key, rate) end
  local state = stored[key]
  kepts[key], kept_untils[key] = 0, 0
  gap_froms[key], gap_untils[key] = 0, 0
  local size = state and #state or 0
  local has_gap = size % 8 == 1
  if has_gap then size = size - 17 end
  if size ~= 40 and size ~= 56 and size ~= 72 then
    levels[key], frees[key], blocks[key], rates[key], leased_rates[key], leased_untils[key] = 0, 0, 0, rate, 0, 0
    return
  end
  local level, at, free, blocked, counted = struct.unpack('<ddddd', state)
  local leased_rate, leased_until = 0, 0
  if has_gap then gap_froms[key], gap_untils[key] = struct.unpack('<dd', state, size + 1) end
  if size >= 56 then leased_rate, leased_until = struct.unpack('<dd', state, 41) end
  if size == 72 then kepts[key], kept_untils[key] = struct.unpack('<dd', state, 57) end
  level, free, kepts[key] = number(level), number(free), number(kepts[key])
  leased_rate, leased_until = number(leased_rate), number(leased_until)
  local elapsed = now - at
  if elapsed < 0 then
    -- The clock went back: no time has passed. This is kept, or no time ever would pass.
    free, blocked = free + elapsed, blocked + elapsed
    if leased_until ~= 0 then leased_until = leased_until + elapsed end
    if kept_untils[key] ~= 0 then kept_untils[key] = kept_untils[key] + elapsed end
    gap_untils[key] = 0
    changed[key] = true
  elseif level > 0 then
    level = max(0, level - elapsed * rate + leased_rate * max(0, min(now, leased_until) - at))
  end
  levels[key], frees[key], blocks[key], rates[key] = level, free, blocked, counted
  leased_rates[key], leased_untils[key] = leased_rate, leased_until
  apply_rate(key, rate)
  if not is_blocked(key) then
    -- A block until drained must not come back with the level, so its end is kept.
    if blocks[key] == DRAINED then changed[key] = true end
    blocks[key] = 0
  end
end

-- What a cost of the operation is in a place.
local function cost_in(place, cost)
  local own = input[place + 6]
  if own ~= own or cost == 0 then return cost end
  return own
end

-- Whether buckets can count a cost. Each comparison with NaN is false.
local function is_cost(cost)
  return cost >= 0 and cost < math.huge
end

local function are_costs(first, last, cost)
  for place = first, last, 7 do if not is_cost(cost_in(place, cost)) then return false end end
  return true
end

-- How much may be held still when a cost leaves.
local function slack_of(place, cost)
  return max(0, input[place + 5] - cost)
end

-- The room that is kept from newcomers.
local function reserved_in(key)
  return now <= kept_untils[key] and kepts[key] or 0
end

@promise@
-- The place whose booking is claimed, if that is due.
local claimed_place

-- The level with the room that is kept from the request.
local function occupied(place)
  local key = input[place]
  return levels[key] + (place == claimed_place and 0 or reserved_in(key))
end

-- The first of the reasons, in their order, for which any place refuses; 0: none does.
local function reason_against(first, last, whole, max_wait)
  local reason = 5
  for place = first, last, 7 do
    local cost = cost_in(place, whole)
    local key, rate, capacity = input[place], input[place + 1], input[place + 2]
    local level = occupied(place)
    if not is_cost(cost) or cost - capacity > LEVEL_TOLERANCE then return 1 end
    if blocks[key] ~= 0 and is_blocked(key) then
      reason = min(reason, 2)
    elseif level + cost - capacity > LEVEL_TOLERANCE then
      reason = min(reason, 3)
    elseif (level - slack_of(place, cost)) / rate - SAME_WAIT > max_wait then
      reason = min(reason, 4)
    end
  end
  return reason < 5 and reason or 0
end

local function refuses(place, reason, whole, max_wait)
  local cost = cost_in(place, whole)
  local key, rate, capacity = input[place], input[place + 1], input[place + 2]
  if reason == 1 then return not is_cost(cost) or cost - capacity > LEVEL_TOLERANCE end
  if reason == 2 then return is_blocked(key) end
  if reason == 3 then return occupied(place) + cost - capacity > LEVEL_TOLERANCE end
  return (occupied(place) - slack_of(place, cost)) / rate - SAME_WAIT > max_wait
end

local function apply_overflow_policy(place)
  local key, capacity, fill, block_for = input[place], input[place + 2], input[place + 3], input[place + 4]
  if fill == 1 then levels[key] = max(levels[key], capacity) end
  if block_for ~= 0 then blocks[key] = now + block_for end
  if fill == 1 or block_for ~= 0 then changed[key] = true end
end

local function time_until_fit(first, last, whole, max_wait)
  local time = 0
  for place = first, last, 7 do
    local cost = cost_in(place, whole)
    local key, rate, capacity = input[place], input[place + 1], input[place + 2]
    local blocked = blocks[key] ~= 0 and is_blocked(key)
    local target = min(capacity - cost, rate * max_wait + slack_of(place, cost))
    if blocked and blocks[key] == DRAINED then
      target = 0
    elseif blocked then
      time = max(time, blocks[key] - now)
    end
    time = max(time, (occupied(place) - target) / rate)
  end
  return time
end

local function refuse(reason, first, last, cost, max_wait, dry)
  local refusing = {}
  for place = first, last, 7 do refusing[place] = refuses(place, reason, cost, max_wait) end
  if reason == 3 and not dry then
    for place = first, last, 7 do if refusing[place] then apply_overflow_policy(place) end end
  end
  tell(0)
  tell(reason)
  tell(reason == 1 and -1 or time_until_fit(first, last, cost, max_wait))
  for place = first, last, 7 do tell(levels[input[place]]) end
  for place = first, last, 7 do tell(refusing[place] and 1 or 0) end
end

local function free_for(place, cost)
  return frees[input[place]] - slack_of(place, cost) / input[place + 1]
end

-- Whether a claim is for any time. Slots that go with leased ones are at their moments, and in the order of these.
local any_time

-- Slots of leases are dealt out from the end, and a burst is let through at once.
local function may_have_gap(place)
  return any_time and input[place + 5] == 0 and leased_untils[input[place]] <= now
end

-- The first moment, not before this one, at which a slot is possible in these places.
local function first_slot(first, last, cost, at)
  repeat
    local before = at
    for place = first, last, 7 do
      local key, free = input[place], free_for(place, cost_in(place, cost))
      if at < free then
        local begin, length = max(now, at, gap_froms[key]), cost_in(place, cost) / input[place + 1]
        local fits = may_have_gap(place) and begin + length <= min(gap_untils[key], frees[key]) + SAME_SLOT
        at = fits and begin or free
      end
    end
  until at == before
  return at
end

local function take_slot(place, cost, slot, from)
  local key, free, length = input[place], free_for(place, cost), cost / input[place + 1]
  changed[key] = true
  if slot < free then
    local behind = slot + length
    if slot - gap_froms[key] > gap_untils[key] - behind then gap_untils[key] = slot else gap_froms[key] = behind end
    return
  end
  local begin, known = max(now, frees[key]), gap_untils[key] - max(now, gap_froms[key])
  if may_have_gap(place) and from - begin >= max(length, known) then gap_froms[key], gap_untils[key] = begin, from
  -- A smaller cost that comes later must not overtake.
  elseif length > known then gap_untils[key] = 0 end
  frees[key] = max(frees[key], slot) + length
end

-- The numbers behind the places say how far ahead the slot may be.
local function claim(first, last, cost, since, not_before)
  any_time = not_before == -math.huge
  local slot, earliest = max(now - min(since, back), not_before), max(now, not_before)
  local refused = not are_costs(first, last, cost)
  local in_turn, start = max(now, slot) + SAME_SLOT, slot
  local within = input[last + 9]
  local wanted = min(not_before + (within < math.huge and within or 0), now + @MOST_AHEAD@)
  local furthest = max(now + horizon + input[last + 7], wanted)
  local free
  for place = first, last, 7 do
    free = free_for(place, cost_in(place, cost))
    -- Those who lease are in turn.
    if leased_untils[input[place]] > now and free > in_turn then refused = true end
    earliest = max(earliest, free)
  end
  slot = first_slot(first, last - 7, cost, slot)
  -- The last bucket would be idle meanwhile.
  if slot > furthest and slot > free then refused = true end
  slot = first_slot(first, last, cost, slot)
  if refused or slot > furthest + input[last + 8] or slot - not_before > within then
    tell(0)
    for place = first, last, 7 do
      free = free_for(place, cost_in(place, cost))
      tell(max(now, start < free and first_slot(place, place, cost, start) or free))
    end
    return
  end
  local from = min(slot, earliest)
  for place = first, last, 7 do take_slot(place, cost_in(place, cost), slot, from) end
  tell(1)
  tell(slot)
  tell(from)
end

local function admit(verb, first, last, cost, max_wait)
  local reason = reason_against(first, last, cost, max_wait)
  if reason > 0 then return refuse(reason, first, last, cost, max_wait, verb == JUDGE) end
  tell(1)
  if verb == JUDGE then
    for place = first, last, 7 do tell(levels[input[place]]) end
    return
  end
  for place = first, last, 7 do
    local key = input[place]
    local level = levels[key] + cost_in(place, cost)
    levels[key] = level
    blocks[key] = 0
    changed[key] = true
    tell(level)
  end
  if verb == ADMIT_AND_CLAIM then claim(first, last, cost, 0, -math.huge) end
end

-- `behind` is where its numbers begin. They name the place, the client and the booking.
local function admit_booked(first, last, behind, cost, max_wait)
  local place = first + 7 * input[behind]
  local booked = find_booking(place, input[last + 7], cost_in(place, cost), input[behind + 1], input[behind + 2])
  claimed_place = booked and booked.at <= now + SAME_WAIT and now <= booked.till and place or nil
  local before = length
  admit(ADMIT, first, last, cost, max_wait)
  claimed_place = nil
  if booked and output[before + 1] == 1 then redeem(place, booked) end
end

local function give_back(first, last, cost, slot, slot_cost)
  if not (are_costs(first, last, cost) and are_costs(first, last, slot_cost)) then return end
  for place = first, last, 7 do
    local key = input[place]
    levels[key] = max(0, levels[key] - cost_in(place, cost))
    local lasts = cost_in(place, slot_cost) / input[place + 1]
    -- Kept also if it only leaked: a clock that goes back must not bring it back.
    if stored[key] then changed[key] = true end
    local free, rate, burst = frees[key], input[place + 1], input[place + 5]
    local slack = max(0, burst - lasts * rate) / rate
    -- Without a slot, which is -infinite then, this changes nothing.
    if math.abs(free - slot - slack - lasts) <= SAME_SLOT then frees[key] = free - lasts
    elseif free <= now + burst / rate then frees[key] = free - max(0, lasts - max(0, now - slot)) end
    if frees[key] ~= free then changed[key] = true end
  end
end

local function settle(first, last, cost)
  for place = first, last, 7 do
    local key, rate, capacity = input[place], input[place + 1], input[place + 2]
    local difference, free, level = cost_in(place, cost), max(frees[key], now), levels[key]
    if not is_cost(math.abs(difference)) then difference = 0 end
    local held = (free - now) * rate
    local moved = max(-held, min(difference, max(0, capacity - held)))
    frees[key] = max(now, free + moved / rate)
    -- What was settled moves the schedule, and it has no gap any more.
    gap_untils[key] = 0
    levels[key] = max(0, level + (difference < 0 and difference or moved))
    changed[key] = true
    tell(difference < 0 and min(moved, levels[key] - level) or moved)
  end
end

local function reset(first, last)
  for place = first, last, 7 do
    local key = input[place]
    levels[key], blocks[key], frees[key], leased_rates[key], leased_untils[key] = 0, 0, 0, 0, 0
    kepts[key], kept_untils[key] = 0, 0
    gap_untils[key] = 0
    changed[key], forgotten[key], leases[key], promises[key] = true, true, nil, nil
  end
end

local function beat(place, left, id)
  local registry = KEYS[input[place]]
  -- First, as a server without memory refuses this one, and must not have done the rest.
  redis.call('ZADD', registry, now, id)
  redis.call('ZREMRANGEBYSCORE', registry, '-inf', now - BEAT_LIFE)
  redis.call('ZREMRANGEBYSCORE', registry, now + BEAT_AHEAD, '+inf')
  redis.call('PEXPIRE', registry, BEAT_LIFE + KEEP_MARGIN)
  redis.call('PEXPIRE', KEYS[input[left]], BEAT_LIFE + KEEP_MARGIN)
  local ids, rank = redis.call('ZRANGE', registry, 0, -1), 0
  for _, other in ipairs(ids) do if other < id then rank = rank + 1 end end
  tell(#ids)
  tell(tonumber(stored[input[left]] or 0) or 0)
  tell(rank)
end

local function leave(place, left, id)
  if redis.call('ZREM', KEYS[input[place]], id) == 0 then return end
  redis.call('INCR', KEYS[input[left]])
  redis.call('PEXPIRE', KEYS[input[left]], BEAT_LIFE + KEEP_MARGIN)
end

@lease@
local position = 6
for _ = 1, count do
  local verb, cost, x = input[position], input[position + 1], input[position + 2]
  local first = position + 6
  local last = first + 7 * (input[position + 4] - 1)
  local behind = last + 7 + input[position + 5]
  for place = last + 7, behind - 1 do input[place] = number(input[place]) end
  if verb == BEAT then
    beat(first, last, ARGV[x])
  elseif verb == LEAVE then
    leave(first, last, ARGV[x])
  elseif verb == EXCHANGE then
    local channel = last > first and KEYS[input[last]]
    local paused_for, rate, rate_for = exchange(KEYS[input[first]], now, input[position + 3], cost, x, channel)
    tell(paused_for)
    tell(rate)
    tell(rate_for)
  elseif verb == LEASE then
    open(input[first], input[first + 1])
    lease(first, behind, number(cost), x)
  elseif verb == PROMISE then
    open(input[first], input[first + 1])
    promise(first, cost, x)
  elseif verb == ADMIT_BOOKED then
    for place = first, last - 7, 7 do open(input[place], input[place + 1]) end
    admit_booked(first, last - 7, last + 7, cost, x)
  else
    for place = first, last, 7 do open(input[place], input[place + 1]) end
    if verb <= JUDGE then admit(verb, first, last, cost, x)
    elseif verb == CLAIM then claim(first, last, cost, x, input[position + 3])
    elseif verb == GIVE_BACK then give_back(first, last, cost, input[position + 3], x)
    elseif verb == SETTLE then settle(first, last, cost)
    else reset(first, last) end
  end
  position = behind
end

for key in pairs(changed) do
  local level, free, blocked = levels[key], frees[key], blocks[key]
  local leased_until, kept_until = leased_untils[key], kept_untils[key]
  if forgotten[key] and level == 0 and free == 0 and blocked == 0 and leased_until == 0 and kept_until == 0 then
    redis.call('DEL', KEYS[key])
  else
    -- It is not needed when it has drained, its schedule has passed and no block lasts.
    local busy = max(level / rates[key], free - now, leased_until - now, kept_until - now)
    if blocked < DRAINED then busy = max(busy, blocked - now) end
    local expiry = min(LONGEST, math.ceil(busy) + KEEP_MARGIN)
    local state = struct.pack('<ddddd', level, now, free, blocked, rates[key])
    if leased_until ~= 0 or kept_until ~= 0 then state = state .. struct.pack('<dd', leased_rates[key], leased_until) end
    if kept_until ~= 0 then state = state .. struct.pack('<dd', kepts[key], kept_until) end
    if gap_untils[key] > now then state = state .. struct.pack('<ddB', gap_froms[key], gap_untils[key], 0) end
    redis.call('SET', KEYS[key], state, 'PX', expiry)
  end
end
for key, opened in pairs(leases) do keep_leases(key, opened) end
for key, opened in pairs(promises) do keep_promises(key, opened) end

return pack(output, length)
