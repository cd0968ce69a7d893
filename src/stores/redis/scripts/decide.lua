-- Carries out a list of operations on bucket instances, in order, as one atomic step. src/sharing/store.ts says what each
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
--           lease: cost is the largest. The places are the bucket and what is leased of it. Numbers: the instance, held,
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
--   exchange     how long it is paused, the rate that it allows, and how long that holds
--
-- What buckets cannot count is no cost: with NaN, an infinite or a negative one an admission is too costly, no claim is granted, and
-- nothing is given back, settled or promised.
--
-- A bucket is kept as five doubles: level, at, free (when what was granted has drained), blocked (0: not; infinite: until
-- drained), and the rate that `free` was counted with. One that is leased has three more: the part of the rate by which the level
-- does not drain, until when, and what of the level does not drain. One that has promised something has two more: the room that
-- is kept from newcomers, and until when. decider/leases-codec.ts and decider/appointments-codec.ts say how leases and promises
-- are kept.
--
-- src/decider decides. This is what it needs here: the state of buckets from their keys and back, operations from doubles, and
-- answers to doubles.

local function clock()
  local time = redis.call('TIME')
  return (tonumber(time[1]) - @CLOCK_ORIGIN@) * 1000 + tonumber(time[2]) / 1000
end
local now = clock()

local ADMIT, ADMIT_AND_CLAIM, JUDGE, CLAIM, GIVE_BACK, RESET, BEAT, EXCHANGE, LEAVE, LEASE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local SETTLE, APPOINT, ADMIT_BOOKED = 11, 12, 13
local BEAT_LIFE, BEAT_AHEAD, KEEP_MARGIN = @BEAT_LIFE@, @BEAT_AHEAD@, @KEEP_MARGIN@
-- Numbers that are packed in one call: they are on the stack.
local AT_ONCE = 4000
-- ms, the longest life of a key.
local LONGEST = 1e13
local max, min = math.max, math.min

local input = { struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1]) }
local count = input[5]
if now > input[1] then return struct.pack('<dd', now, 0) end
if now < input[2] then return struct.pack('<dd', now, -1) end

@decider/costs@
@decider/bucket@
@decider/admission@
@decider/schedule@

local stored = #KEYS > 0 and redis.call('MGET', unpack(KEYS)) or {}
-- By their place in KEYS, and the places of what is leased and promised of them, where that was opened.
local buckets, leased, promised = {}, {}, {}
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

-- One number, or up to three.
local function tell(one, two, three)
  output[length + 1], output[length + 2], output[length + 3] = one, two, three
  length = length + (three and 3 or two and 2 or 1)
end

-- A NaN that an older version has left counts as 0: it would never drain.
local function number(value)
  return value == value and value or 0
end

-- A moment that is kept as 0 has passed, as good as -Infinity.
local function load_bucket(key, rate)
  local state = stored[key]
  local size = state and #state or 0
  if size ~= 40 and size ~= 64 and size ~= 80 then return newBucket(rate) end
  local level, at, free, blocked, counted = struct.unpack('<ddddd', state)
  local leased_rate, leased_until, leased_room, kept, kept_until = 0, 0, 0, 0, 0
  if size >= 64 then leased_rate, leased_until, leased_room = struct.unpack('<ddd', state, 41) end
  if size == 80 then kept, kept_until = struct.unpack('<dd', state, 65) end
  return {
    level = level == level and level or 0, at = at, free = free == free and free or 0, blocked = blocked, rate = counted,
    leasedRate = number(leased_rate), leasedUntil = number(leased_until), leasedRoom = leased_room, kept = number(kept), keptUntil = kept_until,
  }
end

-- It is not needed when it has drained, its schedule has passed and no block lasts.
local function keep_bucket(key, bucket)
  local level, free, blocked, leased_until, kept_until = bucket.level, bucket.free, bucket.blocked, bucket.leasedUntil, bucket.keptUntil
  if free < 0 then free = 0 end
  if blocked < 0 then blocked = 0 end
  if leased_until < 0 then leased_until = 0 end
  if kept_until < 0 then kept_until = 0 end
  if level + free + blocked + leased_until + kept_until == 0 then
    return stored[key] and redis.call('DEL', KEYS[key])
  end
  local busy = max(level / bucket.rate, free - now, leased_until - now, kept_until - now)
  if blocked < math.huge then busy = max(busy, blocked - now) end
  local state = struct.pack('<ddddd', level, now, free, blocked, bucket.rate)
  if leased_until ~= 0 or kept_until ~= 0 then state = state .. struct.pack('<ddd', bucket.leasedRate, leased_until, bucket.leasedRoom) end
  if kept_until ~= 0 then state = state .. struct.pack('<dd', bucket.kept, kept_until) end
  redis.call('SET', KEYS[key], state, 'PX', min(LONGEST, math.ceil(busy) + KEEP_MARGIN))
end

local function keep_list(place, numbers, till)
  local expiry = min(LONGEST, math.ceil(max(0, till - now)) + BEAT_LIFE + KEEP_MARGIN)
  redis.call('SET', KEYS[place], pack(numbers, #numbers), 'PX', expiry)
end

-- What a cost of the operation is in a place of the input.
local function cost_in(at, cost)
  local own = input[at + 6]
  return (own ~= own or cost == 0) and cost or own
end

-- The places of the operation, and those of operations before, to be used again.
local places, known, held = {}, {}, 0

local function open(first, last, cost)
  local size = 0
  for at = first, last, 7 do
    local key, rate = input[at], input[at + 1]
    local bucket = buckets[key]
    if not bucket then
      bucket = load_bucket(key, rate)
      buckets[key] = bucket
    end
    -- Of a quota: its period, and how long that lasts.
    local is_quota = input[at + 3] == 2
    openPeriod(bucket, is_quota and input[at + 4] or 0, is_quota and input[at + 5] or 0, now)
    openBucket(bucket, rate, now)
    size = size + 1
    local place = known[size]
    if not place then
      place = { bucket = bucket, capacity = 0, burst = 0, fills = false, blockFor = 0, cost = 0, isDue = false, level = 0, reserved = 0,
        reason = 0, free = 0, length = 0 }
      known[size] = place
    end
    place.bucket, place.capacity, place.fills = bucket, input[at + 2], input[at + 3] == 1
    place.blockFor = is_quota and 0 or input[at + 4]
    local own = input[at + 6]
    place.burst, place.cost, place.isDue = is_quota and 0 or input[at + 5], (own ~= own or cost == 0) and cost or own, false
    places[size] = place
  end
  for place = size + 1, held do places[place] = nil end
  held = size
end

local asked = { horizon = 0, back = input[4], since = 0, notBefore = 0, within = 0, ahead = 0, at = 0, from = 0 }

-- Behind the places, `behind`, are the numbers that say how far ahead the slot may be.
local function claim_slot(behind, since, not_before)
  asked.since, asked.notBefore, asked.horizon = since, not_before, input[3] + input[behind]
  asked.ahead, asked.within, asked.own = input[behind + 1], input[behind + 2], input[behind + 3]
  if claim(places, asked, now) then return tell(1, asked.at, asked.from) end
  tell(0)
  for at = 1, held do tell(places[at].free) end
end

local terms = { maxWait = 0, lead = max(0, -input[4]) }

-- Whether it is admitted.
local function ask_admission(verb, max_wait)
  local decide = verb == JUDGE and judge or decideAdmission
  terms.maxWait = max_wait
  local reason = decide(places, terms, now)
  if reason == 0 then
    tell(1)
    for at = 1, held do tell(places[at].level) end
    return true
  end
  tell(0, reason, reason == @TOO_COSTLY@ and -1 or timeUntilAdmitted(places, max_wait, now))
  for at = 1, held do tell(places[at].level) end
  for _, place in ipairs(places) do tell(place.reason == reason and 1 or 0) end
end

local function give_back(first, slot, slot_cost, own_places)
  local costs = {}
  for index, place in ipairs(places) do
    local own = input[first + 7 * index - 1]
    costs[index] = (own ~= own or slot_cost == 0) and slot_cost or own
    if not (isCost(place.cost) and isCost(costs[index])) then return end
  end
  for index, place in ipairs(places) do
    giveBack(place, { slot = slot, slotCost = costs[index], isOwn = index <= own_places }, now)
  end
end

local function reset(key)
  buckets[input[key]] = emptiedBucket(input[key + 1], now)
end

-- What instances tell each other of an upstream is kept as four doubles: at (ms of this clock) and, at that time, how much longer it is
-- paused (ms), its rate (cost units per ms) and how much longer that holds (ms). Durations, not moments: if the clock goes back,
-- no time has passed. `at` moves with each exchange, so that little time is lost.

local SAME_PAUSE = @SAME_PAUSE@

-- paused_for, rate and rate_for are the news; rate 0: none. Answers what holds, in the same terms. What is new for the others
-- is published on `channel`, as `u`, the time and these terms as doubles, and the key.
local function exchange(key, paused_for, rate, rate_for, channel)
  -- Unlike GET it answers nothing for a key that is not a string.
  local state = redis.call('MGET', key)[1]
  local known = state and #state == 32
  local is_new = paused_for > 0 or rate > 0
  if known then
    local at, paused, allowed, holds = struct.unpack('<dddd', state)
    local elapsed = max(0, now - at)
    local left = holds - elapsed
    is_new = paused_for > max(0, paused - elapsed) + SAME_PAUSE or rate > 0 and (rate ~= allowed or rate_for > left)
    paused_for = max(paused_for, paused - elapsed)
    if rate == 0 then rate, rate_for = allowed, max(0, left) end
  end
  local lasts = max(paused_for, rate_for)
  if lasts > 0 then
    redis.call('SET', key, struct.pack('<dddd', now, paused_for, rate, rate_for), 'PX', math.ceil(lasts) + @KEEP_MARGIN@)
  elseif known then
    -- Or it would come back with a clock that goes back.
    redis.call('DEL', key)
  end
  if is_new and channel then
    -- A user without the right to publish still shares what it learns: the others ask.
    redis.pcall('PUBLISH', channel, 'u' .. struct.pack('<dddd', now, paused_for, rate, rate_for) .. key)
  end
  return paused_for, rate, rate_for
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
  tell(#ids, tonumber(stored[input[left]] or 0) or 0, rank)
end

local function leave(place, left, id)
  if redis.call('ZREM', KEYS[input[place]], id) == 0 then return end
  redis.call('INCR', KEYS[input[left]])
  redis.call('PEXPIRE', KEYS[input[left]], BEAT_LIFE + KEEP_MARGIN)
end

-- These functions are made when they are needed: most calls need none.
local function load_leases()
@decider/leases@
@decider/leases-codec@
  return lease, packLeases, unpackLeases
end
local decide_lease, pack_leases, unpack_leases

local function load_promises()
@decider/appointments@
@decider/appointments-codec@
  return appoint, claimed, redeem, packPromises, unpackPromises
end
local decide_promise, find_booking, redeem_booking, pack_promises, unpack_promises

-- `first` is the place of the bucket, and the next one that of its leases. Behind them are the numbers, up to `behind`.
local function report(first, behind, largest, lead)
  if not decide_lease then decide_lease, pack_leases, unpack_leases = load_leases() end
  local bucket, key, at = places[1].bucket, input[first], first + 25
  if not leased[key] then
    leased[key] = input[first + 7]
    local packed = stored[leased[key]]
    if bucket.leasedUntil > 0 and packed then bucket.leases = unpack_leases(unpack_all(packed), bucket.leasedUntil) end
  end
  local demand, returned = {}, {}
  for class = 1, input[first + 24] do
    demand[class] = { priority = input[at], weight = input[at + 1], cost = input[at + 2] }
    at = at + 3
  end
  while at < behind do
    returned[#returned + 1] = { at = input[at], cost = input[at + 1] }
    at = at + 2
  end
  local limits = {
    capacity = input[first + 2], burst = input[first + 5], minShare = input[first + 17], overflow = places[1].fills and 'fill' or nil,
  }
  change(bucket, 0, now)
  local answer = decide_lease(bucket, {
    bucket = { limits = limits }, instance = input[first + 14], held = input[first + 15], want = input[first + 16],
    ahead = input[first + 18], lacks = input[first + 19], late = input[first + 20], pace = input[first + 21],
    drained = input[first + 22], kept = input[first + 23], largest = largest, lead = lead, demand = demand, returned = returned, reserved = reservedOf(bucket, now),
  }, now)
  tell(answer.nextAt, answer['until'], answer.room)
  tell(answer.roomRate, answer.roomFrom, answer.roomUntil)
  tell(answer.filled, answer.spare, answer.level)
  tell(answer.instances, answer.lateBy, #answer.slots)
  for _, slot in ipairs(answer.slots) do tell(slot.at, slot.cost) end
  tell(#answer.others)
  for _, other in ipairs(answer.others) do tell(other.priority, other.weight, other.cost) end
end

-- `list` is the place in KEYS of what is promised of the bucket.
local function open_promises(bucket, key, list)
  if not decide_promise then
    decide_promise, find_booking, redeem_booking, pack_promises, unpack_promises = load_promises()
  end
  if promised[key] then return end
  promised[key] = list
  local packed = stored[list]
  if bucket.keptUntil > 0 and packed then bucket.promises = unpack_promises(unpack_all(packed), bucket.keptUntil) end
end

local function promise(first, cost, max_wait)
  local place, at = places[1], first + 14
  open_promises(place.bucket, input[first], input[first + 7])
  local answer = decide_promise(place, {
    cost = cost, client = input[at], booking = input[at + 1], fit = input[at + 2], more = input[at + 3], maxWait = max_wait,
  }, now)
  tell(answer.after, answer.booking, answer.window)
  tell(answer.made and 1 or 0, answer.more)
end

-- The place of the list is behind those of the stack, and then come the numbers.
local function admit_booked(first, list, max_wait)
  local index = input[list + 7]
  local place = places[index + 1]
  open_promises(place.bucket, input[first + 7 * index], input[list])
  local booking = find_booking(place, { client = input[list + 8], booking = input[list + 9] }, now)
  if ask_admission(ADMIT, max_wait) and booking then redeem_booking(place, booking) end
end

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
    tell(exchange(KEYS[input[first]], input[position + 3], cost, x, channel))
  elseif verb == LEASE then
    open(first, first, 0)
    report(first, behind, number(cost), x)
  elseif verb == APPOINT then
    open(first, first, cost)
    promise(first, cost, x)
  elseif verb == ADMIT_BOOKED then
    open(first, last - 7, cost)
    admit_booked(first, last, x)
  elseif verb == RESET then
    reset(first)
  else
    open(first, last, cost)
    if verb <= JUDGE then
      if ask_admission(verb, x) and verb == ADMIT_AND_CLAIM then claim_slot(last + 7, 0, -math.huge) end
    elseif verb == CLAIM then claim_slot(last + 7, x, input[position + 3])
    elseif verb == GIVE_BACK then give_back(first, input[position + 3], x, input[last + 7])
    else
      for _, place in ipairs(places) do tell(settle(place, now)) end
    end
  end
  position = behind
end

for key, bucket in pairs(buckets) do
  -- It has changed.
  if bucket.at == now then keep_bucket(key, bucket) end
end
for key, place in pairs(leased) do
  local bucket = buckets[key]
  if bucket.leases then keep_list(place, pack_leases(bucket.leases, bucket.leasedUntil), bucket.leasedUntil)
  else redis.call('DEL', KEYS[place]) end
end
for key, place in pairs(promised) do
  local bucket = buckets[key]
  if bucket.keptUntil > 0 then keep_list(place, pack_promises(bucket), bucket.keptUntil)
  else redis.call('DEL', KEYS[place]) end
end

return pack(output, length)
