-- What a bucket has promised to rejected clients. stores/memory/promises.ts says why, and decides the same. decide.lua includes
-- this.
--
-- It is kept as doubles: until when (as in the bucket; if it differs, the clock went back and moved that), and of each promise
-- client, booking (0: it keeps no room), cost, at, till. Those without a booking are one entry, of client 0.

local MOST_PROMISES, SHORTEST_WINDOW, LONGEST_WINDOW = @MOST_PROMISES@, @SHORTEST_WINDOW@, @LONGEST_WINDOW@
local LONGEST_FIT = @FRAME@

-- `place` is that of the list in KEYS.
local function open_promises(key, place)
  if promises[key] then return promises[key] end
  local opened = { place = place, list = {} }
  promises[key] = opened
  local packed = stored[place]
  if kept_untils[key] == 0 or not packed then return opened end
  local numbers = unpack_all(packed)
  local by = kept_untils[key] - numbers[1]
  for at = 2, #numbers, 5 do
    opened.list[#opened.list + 1] = {
      client = numbers[at], booking = numbers[at + 1], cost = numbers[at + 2], at = numbers[at + 3] + by, till = numbers[at + 4] + by,
    }
  end
  return opened
end

local function keep_promises(key, opened)
  if #opened.list == 0 then return redis.call('DEL', KEYS[opened.place]) end
  local numbers, size = { kept_untils[key] }, 1
  for _, each in ipairs(opened.list) do
    numbers[size + 1], numbers[size + 2], numbers[size + 3] = each.client, each.booking, each.cost
    numbers[size + 4], numbers[size + 5] = each.at, each.till
    size = size + 5
  end
  local expiry = min(LONGEST, math.ceil(max(0, kept_untils[key] - now)) + KEEP_MARGIN)
  redis.call('SET', KEYS[opened.place], pack(numbers, size), 'PX', expiry)
end

-- Those that pass a test.
local function only(list, test)
  local kept = {}
  for _, each in ipairs(list) do if test(each) then kept[#kept + 1] = each end end
  return kept
end

-- The cost of all, and of those that keep room.
local function sums_of(list)
  local all, booked = 0, 0
  for _, each in ipairs(list) do
    all = all + each.cost
    if each.booking ~= 0 then booked = booked + each.cost end
  end
  return all, booked
end

local function keep_room(key, list, capacity)
  local largest, till = 0, 0
  for _, each in ipairs(list) do
    if each.booking ~= 0 then largest = max(largest, each.cost) end
    till = max(till, each.till)
  end
  local _, booked = sums_of(list)
  kepts[key] = min(booked, capacity / 2, rates[key] * LONGEST_WINDOW + largest)
  kept_untils[key], changed[key] = till, true
end

local function tell_promise(each, after, cost)
  tell(after)
  if math.abs(each.cost - cost) > LEVEL_TOLERANCE then
    tell(0)
    tell(0)
  else
    tell(each.booking)
    tell(max(0, each.till - now - after))
  end
  tell(1)
  tell(0)
end

-- How long room would be kept for a client. 0: not at all.
local function window_for(place, booking, cost, room)
  local rate, fill, block_for = input[place + 1], input[place + 3], input[place + 4]
  if booking == 0 or fill == 1 or block_for ~= 0 then return 0 end
  local window = (room / 2 - cost) / rate
  if window < cost / rate then return 0 end
  window = min(window, LONGEST_WINDOW)
  return window < SHORTEST_WINDOW and 0 or window
end

-- `first` is the place of the bucket. Behind the places are the numbers.
local function promise(first, cost, max_wait)
  local key, capacity = input[first], input[first + 2]
  local rate = rates[key]
  local client, booking, fit, more = input[first + 14], input[first + 15], input[first + 16], input[first + 17]
  local opened = open_promises(key, input[first + 7])
  local known, plain
  opened.list = only(opened.list, function(each)
    if each.booking == 0 then
      if each.at <= now then return false end
      each.cost, plain = min(each.cost, rate * (each.at - now)), each
      return true
    end
    if each.till < now then return false end
    if each.client == client then known = each end
    return true
  end)
  if known and (known.at > now or known.till >= now + fit) then
    keep_room(key, opened.list, capacity)
    return tell_promise(known, known.at > now and known.at - now or fit, cost)
  end
  if known then opened.list = only(opened.list, function(each) return each ~= known end) end
  local list = opened.list
  local last = #list > 0 and list[#list].at or -math.huge
  local all, booked = sums_of(list)
  local free = capacity - all - cost
  if #list >= MOST_PROMISES or not is_cost(cost) or free < -LEVEL_TOLERANCE then
    keep_room(key, list, capacity)
    tell(max(fit, last - now))
    for _ = 1, 4 do tell(0) end
    return
  end
  local room = min(capacity, rate * max_wait + slack_of(first, cost) + cost)
  local window = window_for(first, booking, cost, room)
  local growing, kept = 0, reserved_in(key)
  if window > 0 then growing, kept = leased_rates[key] * max(0, leased_untils[key] - now), booked end
  local ahead = max(0, levels[key] + growing + kept + cost - room)
  local moment = max(last + cost / rate, now + ahead / rate)
  local delayed = fit - (moment - now) > max(cost / rate, LONGEST_FIT)
  local at = delayed and moment or max(moment, now + fit)
  if window > 0 and not delayed then
    local made = { client = client, booking = booking, cost = cost, at = at, till = at + window }
    list[#list + 1] = made
    keep_room(key, list, capacity)
    return tell_promise(made, at - now, cost)
  end
  more = min(more, max(0, free))
  local till = at + more / rate
  opened.list = only(list, function(each) return each ~= plain end)
  opened.list[#opened.list + 1] = { client = 0, booking = 0, cost = (plain and plain.cost or 0) + cost + more, at = till, till = till }
  keep_room(key, opened.list, capacity)
  tell(at - now)
  tell(0)
  tell(0)
  tell(1)
  tell(more)
end

-- The booking that is claimed at a place. Nil: there is none, or no more.
local function find_booking(place, list_place, cost, client, booking)
  for _, each in ipairs(open_promises(input[place], list_place).list) do
    if each.client == client and each.booking == booking and math.abs(each.cost - cost) <= LEVEL_TOLERANCE then return each end
  end
end

local function redeem(place, booked)
  local key = input[place]
  local opened = promises[key]
  opened.list = only(opened.list, function(each) return each ~= booked end)
  keep_room(key, opened.list, input[place + 2])
end
