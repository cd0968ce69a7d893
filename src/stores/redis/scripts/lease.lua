-- Leases: who gets which slots of a bucket, and how much room. stores/memory/leases.ts says why, and decides the same. decide.lua
-- includes this.
--
-- What is leased of a bucket is kept as doubles: until when (as in the bucket; if it differs, the clock went back and moved that),
-- the turn of the last slot of each class, what each but the last owes, lateBy, beyond, how many spare slots, how many lessees, how many
-- are gone, time and cost of each spare slot, instance, waits and until of each that is gone, and of each lessee: instance, seenAt, nextAt,
-- lead, late, largest, room, roomRate, roomUntil, lacks, pace, pacedAt, how many demands, how many slots, of each demand priority, weight, cost and turn, of
-- each slot time and cost.

local FRAME, LEASE_LIFE, SLOTS_PER_FRAME = @FRAME@, @LEASE_LIFE@, @SLOTS_PER_FRAME@
local REPORT_SHIFT, REPORT_LATE = @REPORT_SHIFT@, @REPORT_LATE@
local LAST_PRIORITY, FORECAST = @LAST_PRIORITY@, @FORECAST@
local LATENESS_STEP = @LATENESS_STEP@
local FULL_FRAME, SPARE_ROOTS, LEAST_SLOTS = @FULL_FRAME@, @SPARE_ROOTS@, @LEAST_SLOTS@
local KEPT_SLOT_GAP, NEWCOMER_STEP = @KEPT_SLOT_GAP@, @NEWCOMER_STEP@
local EVEN_GRACE, QUICK_LEEWAY = @EVEN_GRACE@, @QUICK_LEEWAY@

local function zeros(number)
  local list = {}
  for place = 1, number do list[place] = 0 end
  return list
end

local function open_leases(key, place)
  local packed = stored[place]
  if leased_untils[key] == 0 or not packed then
    return {
      place = place, turns = zeros(FORECAST + 1), owed = zeros(LAST_PRIORITY), late_by = 0, beyond = 0, spare = {}, lessees = {},
      gone = {},
    }
  end
  local numbers = unpack_all(packed)
  local at = 1
  local function take(number)
    local list = {}
    for index = 1, number do list[index] = numbers[at + index - 1] end
    at = at + number
    return list
  end
  -- The clock went back by this.
  local by = leased_untils[key] - numbers[1]
  local function take_slots(number)
    local list = {}
    for index = 1, number do
      list[index] = { at = numbers[at] + by, cost = numbers[at + 1] }
      at = at + 2
    end
    return list
  end
  at = 2
  local opened = { place = place, turns = take(FORECAST + 1), owed = take(LAST_PRIORITY), lessees = {}, gone = {} }
  opened.late_by, opened.beyond = numbers[at], numbers[at + 1]
  local spares, lessees, gone = numbers[at + 2], numbers[at + 3], numbers[at + 4]
  at = at + 5
  opened.spare = take_slots(spares)
  if by ~= 0 then opened.spare = {} end
  for index = 1, gone do
    opened.gone[index] = { instance = numbers[at], waits = numbers[at + 1], till = numbers[at + 2] + by }
    at = at + 3
  end
  for index = 1, lessees do
    local head = at
    local lessee = {
      instance = numbers[head], seen_at = numbers[head + 1] + by, next_at = numbers[head + 2] + by, lead = numbers[head + 3],
      late = numbers[head + 4], largest = numbers[head + 5], room = numbers[head + 6], room_rate = numbers[head + 7],
      room_until = numbers[head + 8] + by, lacks = numbers[head + 9], pace = numbers[head + 10],
      paced_at = numbers[head + 11] + by, demand = {},
    }
    at = head + 14
    for class = 1, numbers[head + 12] do
      lessee.demand[class] =
        { priority = numbers[at], weight = numbers[at + 1], cost = numbers[at + 2], turn = numbers[at + 3] }
      at = at + 4
    end
    lessee.slots = take_slots(numbers[head + 13])
    opened.lessees[index] = lessee
  end
  return opened
end

local function keep_leases(key, opened)
  if #opened.lessees == 0 then return redis.call('DEL', KEYS[opened.place]) end
  local numbers, size = { leased_untils[key] }, 1
  local function put(number)
    size = size + 1
    numbers[size] = number
  end
  local function put_slots(slots)
    for _, slot in ipairs(slots) do
      put(slot.at)
      put(slot.cost)
    end
  end
  for _, turn in ipairs(opened.turns) do put(turn) end
  for _, cost in ipairs(opened.owed) do put(cost) end
  put(opened.late_by)
  put(opened.beyond)
  put(#opened.spare)
  put(#opened.lessees)
  put(#opened.gone)
  put_slots(opened.spare)
  for _, lost in ipairs(opened.gone) do
    put(lost.instance)
    put(lost.waits)
    put(lost.till)
  end
  for _, lessee in ipairs(opened.lessees) do
    put(lessee.instance)
    put(lessee.seen_at)
    put(lessee.next_at)
    put(lessee.lead)
    put(lessee.late)
    put(lessee.largest)
    put(lessee.room)
    put(lessee.room_rate)
    put(lessee.room_until)
    put(lessee.lacks)
    put(lessee.pace)
    put(lessee.paced_at)
    put(#lessee.demand)
    put(#lessee.slots)
    for _, entry in ipairs(lessee.demand) do
      put(entry.priority)
      put(entry.weight)
      put(entry.cost)
      put(entry.turn)
    end
    put_slots(lessee.slots)
  end
  local expiry = min(LONGEST, math.ceil(max(0, leased_untils[key] - now)) + BEAT_LIFE + KEEP_MARGIN)
  redis.call('SET', KEYS[opened.place], pack(numbers, size), 'PX', expiry)
end

-- In the order of their times. Of equal times the first stays first. Most are in order.
local function put_in_order(slots)
  for place = 2, #slots do
    local slot, at = slots[place], place
    while at > 1 and slots[at - 1].at > slot.at do
      slots[at] = slots[at - 1]
      at = at - 1
    end
    slots[at] = slot
  end
end

local function add_spare(spare, slots)
  put_in_order(slots)
  local known, new = #spare, #slots
  for place = known + new, 1, -1 do
    if new == 0 then break end
    if known > 0 and spare[known].at > slots[new].at then
      spare[place], known = spare[known], known - 1
    else
      spare[place], new = slots[new], new - 1
    end
  end
end

local function leave_lease(opened, lessee)
  local others = {}
  for _, other in ipairs(opened.lessees) do if other ~= lessee then others[#others + 1] = other end end
  opened.lessees = others
  add_spare(opened.spare, lessee.slots)
  lessee.slots, lessee.room, lessee.room_rate = {}, 0, 0
end

-- What counts in the level for it, admitted or not: room that was set apart, and what that has grown by since.
local function set_apart(lessee)
  return lessee.room + lessee.room_rate * max(0, min(now, lessee.room_until) - lessee.seen_at)
end

-- An instance that comes back tells what waits in it. One that does not leaves nothing.
local function forget(key, opened, instance)
  local others = {}
  for _, gone in ipairs(opened.gone) do
    if gone.instance == instance or now > gone.till then levels[key] = max(0, levels[key] - gone.waits)
    else others[#others + 1] = gone end
  end
  opened.gone = others
end

local function is_late(lessee)
  return now > lessee.next_at + lessee.lead + REPORT_LATE
end

-- What is known to wait in those that lease, with room that was set apart for those that are not late.
local function waiting_in(key, opened, place)
  local capacity, largest, lead = input[place + 2], 0, 0
  -- A rejected request may have filled it.
  if input[place + 3] == 1 then return 0 end
  for _, lessee in ipairs(opened.lessees) do largest, lead = max(largest, lessee.largest), max(lead, lessee.lead) end
  local ahead = max(0, frees[key] - max(0, input[place + 5] - largest) / rates[key] - now)
  local waiting, pace = ahead * rates[key], 0
  for _, slot in ipairs(opened.spare) do waiting = waiting - slot.cost end
  for _, lessee in ipairs(opened.lessees) do pace = pace + lessee.pace end
  -- Time that passes between the slots of those that are slow is nobody's.
  waiting = min(waiting, ahead * min(rates[key], pace))
  for _, lessee in ipairs(opened.lessees) do waiting = waiting + lessee.lacks end
  for _, gone in ipairs(opened.gone) do waiting = waiting + gone.waits end
  if waiting <= LEVEL_TOLERANCE then return 0 end
  for _, lessee in ipairs(opened.lessees) do if not is_late(lessee) then waiting = waiting + set_apart(lessee) end end
  -- If less could wait than slots are dealt out for, slots would lie idle.
  local dealt = (FRAME + 2 * lead) * rates[key]
  return waiting - max(0, dealt - max(0, capacity - reserved_in(key)))
end

-- What an instance that is gone has not fetched goes to the others. What it may have admitted stays in the level, and drains. Where
-- requests wait in it only these go on counting.
local function drop_dead(key, opened, fill)
  for _, lessee in ipairs(opened.lessees) do
    if now > lessee.next_at + lessee.lead + LEASE_LIFE then
      if lessee.lacks > 0 and fill ~= 1 then
        levels[key] = max(0, levels[key] - set_apart(lessee))
        opened.gone[#opened.gone + 1] = { instance = lessee.instance, waits = lessee.lacks, till = now + BEAT_LIFE }
      end
      leave_lease(opened, lessee)
    end
  end
  for _, lessee in ipairs(opened.lessees) do
    if is_late(lessee) then
      add_spare(opened.spare, lessee.slots)
      for _, slot in ipairs(lessee.slots) do lessee.lacks = lessee.lacks + slot.cost end
      lessee.slots, lessee.demand = {}, {}
    end
  end
end

-- Returned slots become spare. Spare slots at the end of the schedule shorten it.
local function take_back(key, opened, lessee, returned, slack)
  local spare = opened.spare
  for _, slot in ipairs(returned) do lessee.paced_at = min(lessee.paced_at, slot.at) end
  add_spare(spare, returned)
  for place = #spare, 1, -1 do
    local last = spare[place]
    if math.abs(last.at + last.cost / rates[key] + slack - frees[key]) > SAME_SLOT then break end
    frees[key] = last.at + slack
    spare[place] = nil
  end
end

-- Merges the demand with what is known of its turns. Slots that wait for it serve the lowest class first.
local function report_demand(key, opened, lessee, demand)
  local pending, share = 0, rates[key] * FRAME / #opened.lessees
  for _, slot in ipairs(lessee.slots) do pending = pending + slot.cost end
  lessee.lacks = lessee.lacks - pending
  for _, entry in ipairs(demand) do
    local expects = entry.weight > 0 and entry.cost > LEVEL_TOLERANCE
    if entry.priority == FORECAST then entry.weight, entry.cost = entry.cost, expects and math.huge or 0 end
    local present = opened.turns[entry.priority + 1]
    entry.turn = present
    for _, known in ipairs(lessee.demand) do
      if known.priority == entry.priority then
        entry.turn = entry.priority == FORECAST and known.turn or max(known.turn, present - share / entry.weight)
      end
    end
  end
  lessee.demand = demand
  for priority = 0, LAST_PRIORITY do
    for _, entry in ipairs(demand) do
      if entry.priority == priority then
        local covered = min(pending, entry.cost)
        entry.cost = entry.cost - covered
        pending = pending - covered
      end
    end
  end
end

-- What the farthest of them needs.
local function lead_of(opened)
  local lead = 0
  for _, lessee in ipairs(opened.lessees) do lead = max(lead, lessee.lead) end
  return lead
end

-- Whether slots that nobody has a demand for are given out.
local expecting

-- Whether an entry takes slots. A forecast takes them if it has a part of the frame.
local function takes(entry)
  if entry.priority == FORECAST then return expecting and entry.part > LEVEL_TOLERANCE end
  return entry.cost > LEVEL_TOLERANCE
end

-- Those who are there in time for a slot, by class, as heaps: who has its turn is the first one. Of equal turns the first lessee
-- has it. A heap for each class, as looking at all lessees for each slot would take ms. A turn may have come later since its entry
-- was put in its place, which is by `key`.
local heaps, waiting = {}, {}
-- Those who are not there yet, or cannot use slots so fast, and when the first of them can.
local coming, next_ready
-- ms. A slot may come so much before the pace of its instance.
local leeway

local function goes_before(one, other)
  return one.key < other.key or one.key == other.key and one.place < other.place
end

local function push(heap, entry)
  entry.key = entry.turn
  local at = #heap + 1
  while at > 1 do
    local above = math.floor(at / 2)
    if goes_before(heap[above], entry) then break end
    heap[at], at = heap[above], above
  end
  heap[at] = entry
end

-- Puts an entry in the place of the first one.
local function replace_first(heap, entry)
  entry.key = entry.turn
  local at, size = 1, #heap
  while 2 * at <= size do
    local below = 2 * at
    if below < size and goes_before(heap[below + 1], heap[below]) then below = below + 1 end
    if goes_before(entry, heap[below]) then break end
    heap[at], at = heap[below], below
  end
  heap[at] = entry
end

local function pop(heap)
  local last = table.remove(heap)
  if #heap > 0 then replace_first(heap, last) end
end

-- Slots come in the order of their times from now on.
local function line_up(opened)
  for class = 1, FORECAST + 1 do heaps[class], waiting[class] = {}, 0 end
  coming, next_ready = {}, -math.huge
  for place, lessee in ipairs(opened.lessees) do
    for _, entry in ipairs(lessee.demand) do
      if takes(entry) then
        entry.lessee, entry.place = lessee, place
        waiting[entry.priority + 1] = waiting[entry.priority + 1] + 1
        coming[#coming + 1] = entry
      end
    end
  end
end

local function is_in_pace(lessee, at)
  return at >= lessee.paced_at - leeway - SAME_SLOT
end

local function wait_for_turn(entry)
  local usable_at = max(entry.lessee.ready_at, entry.lessee.paced_at - leeway)
  if usable_at > entry.lessee.latest then return end
  coming[#coming + 1] = entry
  next_ready = min(next_ready, usable_at)
end

-- Whether somebody is there who can use no slot at this time, as the last one was just before.
local function is_slow(at)
  for _, entry in ipairs(coming) do if entry.lessee.ready_at <= at then return true end end
  return false
end

local function arrive(at)
  local known = coming
  coming, next_ready = {}, math.huge
  for _, entry in ipairs(known) do
    if entry.lessee.ready_at <= at and is_in_pace(entry.lessee, at) then push(heaps[entry.priority + 1], entry)
    else wait_for_turn(entry) end
  end
end

-- Who has the slot at this time: of the lowest class, or of one behind to which it is owed.
local function next_turn(opened, at)
  if at >= next_ready - SAME_SLOT then arrive(at) end
  local chosen
  for class = 1, FORECAST + 1 do
    local heap = heaps[class]
    local first = heap[1]
    while first do
      if not (takes(first) and at <= first.lessee.latest) then pop(heap)
      elseif not is_in_pace(first.lessee, at) then
        pop(heap)
        wait_for_turn(first)
      elseif first.key < first.turn then replace_first(heap, first)
      else break end
      first = heap[1]
    end
    if first then
      if chosen and class == FORECAST + 1 then break end
      if chosen and opened.owed[chosen.priority + 1] + LEVEL_TOLERANCE < min(first.lessee.largest, first.cost) then break end
      chosen = first
    end
  end
  return chosen
end

local function is_awaited(priority)
  for class = priority + 2, LAST_PRIORITY + 1 do if waiting[class] > 0 then return true end end
  return false
end

local function give_slot(opened, entry, slot, min_share)
  local owed, priority = opened.owed, entry.priority
  for before = 1, min(priority, LAST_PRIORITY) do owed[before] = max(0, owed[before] - (1 - min_share) * slot.cost) end
  if priority < LAST_PRIORITY then
    owed[priority + 1] = is_awaited(priority) and owed[priority + 1] + min_share * slot.cost or 0
  end
  opened.turns[priority + 1] = entry.turn
  entry.turn = entry.turn + slot.cost / entry.part
  entry.cost = max(0, entry.cost - slot.cost)
  if not takes(entry) then waiting[priority + 1] = waiting[priority + 1] - 1 end
  -- An entry further down is moved when it comes to the top.
  if heaps[priority + 1][1] == entry then replace_first(heaps[priority + 1], entry) end
  -- So that those who got less have the next of the slots that nobody has a demand for.
  local forecast = entry.lessee.forecast
  if forecast and forecast.part > 0 and priority < FORECAST then forecast.turn = forecast.turn + slot.cost / forecast.part end
  local slots = entry.lessee.slots
  slots[#slots + 1] = slot
  local lessee = entry.lessee
  if lessee.pace < math.huge then lessee.paced_at = max(lessee.paced_at, slot.at) + slot.cost / lessee.pace end
  lessee.lacks = lessee.lacks - slot.cost
end

-- Divides a frame among the forecasts: what each expects, then some roots of that, then equal parts. A full frame is divided by the root.
-- Returns whether at least half of the frame is free.
local function divide(forecasts, frame, present)
  local expected, roots, sharing = 0, 0, #forecasts
  for _, forecast in ipairs(forecasts) do
    expected = expected + forecast.weight
    roots = roots + math.sqrt(forecast.weight)
  end
  local full = expected > FULL_FRAME * frame
  local by_root = full and frame or min(frame - expected, SPARE_ROOTS * roots)
  local left = full and 0 or frame - expected - by_root
  for _, forecast in ipairs(forecasts) do
    local weight = forecast.weight
    local part = (full and 0 or weight) + (weight > 0 and by_root * math.sqrt(weight) / roots or 0) + left / sharing
    local most = part > 0 and frame / sharing / part or 0
    forecast.part, forecast.turn = part, min(max(forecast.turn, present - most), present + most)
  end
  return left > frame / 2
end

-- The forecast of a newcomer, if the slot at this time is one of those for it.
local function kept_for(lessee, at, apart)
  local slots, forecast = lessee.slots, lessee.forecast
  if not forecast or not takes(forecast) or at < lessee.ready_at then return nil end
  if #slots > 0 and at - slots[#slots].at <= NEWCOMER_STEP * apart then return nil end
  return forecast
end

-- Gives out the schedule up to the end of the next frame, to those who are there in time for it.
local function allocate(key, opened, burst, min_share, newcomer)
  local rate, lead, largest, forecasts = rates[key], lead_of(opened), 0, {}
  expecting = false
  for _, lessee in ipairs(opened.lessees) do
    largest = max(largest, lessee.largest)
    lessee.ready_at = lessee.next_at + lessee.lead
    for _, entry in ipairs(lessee.demand) do
      if entry.cost == math.huge then expecting = true end
      if entry.priority < FORECAST then entry.part = entry.weight
      else forecasts[#forecasts + 1], lessee.forecast = entry, entry end
    end
    lessee.latest = lessee.next_at + lessee.lead + lead + FRAME
  end
  local idle = divide(forecasts, rate * FRAME, opened.turns[FORECAST + 1])
  local most = max(largest, rate * FRAME / SLOTS_PER_FRAME)
  local apart = KEPT_SLOT_GAP * most / rate
  local half = largest / rate / 2
  leeway = half >= EVEN_GRACE and half or QUICK_LEEWAY
  -- The report of the only one is on its way for a part of the next frame, and nobody else reports meanwhile.
  local stop = now + lead + FRAME + (#opened.lessees == 1 and lead or 0)

  if #opened.spare > 0 then
    line_up(opened)
    local unclaimed = {}
    for _, slot in ipairs(opened.spare) do
      if slot.at >= now then
        local entry = next_turn(opened, slot.at)
        if idle and (not entry or entry.priority == FORECAST) then entry = newcomer and kept_for(newcomer, slot.at, apart) end
        if entry then give_slot(opened, entry, slot, min_share) else unclaimed[#unclaimed + 1] = slot end
      end
    end
    opened.spare = unclaimed
  end

  local slack = max(0, burst - largest) / rate
  local at = max(frees[key] - slack, now)
  if at < stop then line_up(opened) end
  while at < stop do
    local entry = next_turn(opened, at)
    if entry then
      local enough = entry.priority == FORECAST and max(largest, entry.part / LEAST_SLOTS) or entry.cost
      local slot, spare = { at = at, cost = min(most, enough) }, opened.spare
      local keeps = idle and entry.priority == FORECAST and (#spare == 0 or at - spare[#spare].at > apart)
      if keeps then spare[#spare + 1] = slot else give_slot(opened, entry, slot, min_share) end
      at = at + slot.cost / rate
      frees[key] = at + slack
    else
      if next_ready >= stop then break end
      -- Between the slots of those that are slow there are some for others. Else the time until somebody is there passes unused.
      if next_ready - at < most / rate or not is_slow(at) then at = next_ready
      else
        opened.spare[#opened.spare + 1] = { at = at, cost = most }
        at = at + most / rate
        frees[key] = at + slack
      end
    end
  end
  -- Slots that were returned after the clock went back or the rate rose may lie behind the schedule.
  put_in_order(opened.spare)
end

-- What is left for all. Negative: more waits than fits.
local function spare_in(key, capacity)
  return min(capacity - levels[key], max(0, capacity - levels[key] - reserved_in(key)))
end

-- Sets room apart for an instance until its next report. Half of what is left stays for those that come. It
-- keeps what was set apart for it and is unused.
local function lease_room(key, opened, lessee, want, unused, capacity)
  if want < 0 then return end
  local sharing, others = #opened.lessees, 0
  local left = spare_in(key, capacity)
  local spare = max(0, left)
  for _, other in ipairs(opened.lessees) do if other ~= lessee then others = others + other.room_rate end end
  lessee.room = min(want, spare, max(spare / 2, unused, sharing == 1 and lessee.largest or 0))
  -- What drains is for those who have booked.
  lessee.room_rate = reserved_in(key) > 0 and 0 or max(0, min(rates[key] / sharing, rates[key] - others) + min(0, left) / FRAME)
  levels[key] = levels[key] + lessee.room
end

-- Reports of different instances come to be evenly apart.
local function apart(opened, lessee, at)
  local before = -math.huge
  for _, other in ipairs(opened.lessees) do
    if other ~= lessee and other.next_at <= at then before = max(before, other.next_at) end
  end
  return max(at, min(before + FRAME / max(1, #opened.lessees), at + REPORT_SHIFT))
end

-- What the bucket itself has to know of its leases.
local function summarise(key, opened)
  local rate, till = 0, 0
  for _, lessee in ipairs(opened.lessees) do
    rate = rate + lessee.room_rate
    till = max(till, lessee.next_at + lessee.lead + LEASE_LIFE)
  end
  leased_rates[key], leased_untils[key], changed[key] = rate, till, true
end

-- When the farthest has left, its lateness falls little by little, and the schedule gives up as much time.
local function follow_lateness(key, opened, late)
  local before, living, latest = opened.late_by, #opened.lessees, 0
  for _, lessee in ipairs(opened.lessees) do latest = max(latest, lessee.late) end
  if living == 0 then opened.late_by = min(before, late)
  else opened.late_by = max(latest, before - LATENESS_STEP / living) end
  frees[key] = frees[key] + max(0, before - opened.late_by)
end

-- What waits in the others and has no slot, by class.
local function tell_others(opened, lessee)
  local weights, costs, count = {}, {}, 0
  for _, other in ipairs(opened.lessees) do
    for _, entry in ipairs(other == lessee and {} or other.demand) do
      local priority = entry.priority
      if priority < FORECAST and entry.cost > LEVEL_TOLERANCE then
        if not costs[priority] then weights[priority], costs[priority], count = 0, 0, count + 1 end
        weights[priority], costs[priority] = weights[priority] + entry.weight, costs[priority] + entry.cost
      end
    end
  end
  tell(count)
  for priority = 0, LAST_PRIORITY do
    if costs[priority] then
      tell(priority)
      tell(weights[priority])
      tell(costs[priority])
    end
  end
end

-- `first` is the place of the bucket. Behind the places are the numbers, up to `behind`.
local function lease(first, behind, largest, lead)
  local key, capacity, burst = input[first], input[first + 2], input[first + 5]
  local opened = leases[key] or open_leases(key, input[first + 7])
  leases[key] = opened
  local numbers = first + 14
  local instance, used, want, min_share, ahead, lacks, late, pace, classes = unpack(input, numbers, numbers + 8)
  local at = numbers + 9
  local demand, returned = {}, {}
  for class = 1, classes do
    demand[class] = { priority = input[at], weight = input[at + 1], cost = input[at + 2] }
    at = at + 3
  end
  while at < behind do
    returned[#returned + 1] = { at = input[at], cost = input[at + 1] }
    at = at + 2
  end

  -- Without what was known to wait beyond it.
  levels[key] = max(0, levels[key] - opened.beyond)
  drop_dead(key, opened, input[first + 3])
  forget(key, opened, instance)
  local lessee
  for _, other in ipairs(opened.lessees) do if other.instance == instance then lessee = other end end
  -- What an instance returns that is not known is of a schedule before a reset.
  local newcomer
  if lessee then take_back(key, opened, lessee, returned, max(0, burst - largest) / rates[key])
  else
    -- The data was lost. Since its last report others may have been given a frame more than it knows.
    if ahead > 0 then frees[key] = max(frees[key], now + ahead + FRAME + REPORT_SHIFT) end
    lessee = { instance = instance, seen_at = now, demand = {}, slots = {}, room = 0, room_rate = 0, room_until = now, pace = pace }
    opened.lessees[#opened.lessees + 1], newcomer = lessee, lessee
  end
  lessee.lead, lessee.late, lessee.largest, lessee.lacks = lead, late, largest, lacks
  lessee.pace = pace
  if newcomer or pace == math.huge then lessee.paced_at = -math.huge end
  report_demand(key, opened, lessee, demand)
  -- What it has admitted counts in place of what was set apart for it.
  local set = set_apart(lessee)
  levels[key] = max(0, levels[key] + used - set)
  lessee.room, lessee.room_rate, lessee.seen_at, lessee.next_at = 0, 0, now, now
  allocate(key, opened, burst, min_share, newcomer)
  opened.beyond = max(0, waiting_in(key, opened, first) - levels[key])
  levels[key] = levels[key] + opened.beyond
  local done = classes == 0 and want <= 0
  if done then leave_lease(opened, lessee)
  else lease_room(key, opened, lessee, want, max(0, set - used), capacity) end
  follow_lateness(key, opened, late)
  local slots = lessee.slots
  lessee.slots = {}
  local most = 0
  for _, other in ipairs(opened.lessees) do most = max(most, other.largest) end
  lessee.next_at =
    max(apart(opened, lessee, now + FRAME), frees[key] - max(0, burst - most) / rates[key] - lead_of(opened) - FRAME)
  lessee.room_until = lessee.next_at + lead + LEASE_LIFE
  summarise(key, opened)

  local rooms = 0
  for _, other in ipairs(opened.lessees) do rooms = rooms + set_apart(other) end
  tell(lessee.next_at)
  tell(frees[key])
  tell(lessee.room)
  tell(lessee.room_rate)
  tell(now)
  tell(lessee.room_until)
  tell(spare_in(key, capacity))
  -- Where it gets less room than it asks for, what waits is why. Who only looks, or leaves, is told what waits as well.
  local told = done or lessee.room < want - LEVEL_TOLERANCE
  tell(max(0, levels[key] - rooms - (told and 0 or opened.beyond)))
  tell(#opened.lessees)
  tell(opened.late_by)
  tell(#slots)
  for _, slot in ipairs(slots) do
    tell(slot.at)
    tell(slot.cost)
  end
  tell_others(opened, lessee)
end
