-- Overrides of limits: a hash of those that last, by bucket and key, each with its end as a double before its text.
-- src/sharing/board.ts says what they mean. Durations in and out. Moments are ms of this clock.
--
-- KEYS      the hash
-- ARGV      the channel for news, verb, and
--   set     the name of one, how long it lasts, its text, how many there may be. Answers 1, or 0: there are too many.
--   end     the name of one, its text. Answers 1, or 0: there is none.
--   list    answers how long each lasts, and its text

local function clock()
  local time = redis.call('TIME')
  return (tonumber(time[1]) - @CLOCK_ORIGIN@) * 1000 + tonumber(time[2]) / 1000
end
local now = clock()
local channel, verb, name = ARGV[1], ARGV[2], ARGV[3]

-- How much longer one lasts. 0: it has ended, or there is none.
local function left(one)
  return one and math.max(0, struct.unpack('<d', one) - now) or 0
end

local function tell(ends_in, text)
  -- A user without the right to publish still sets what the others find when they ask.
  redis.pcall('PUBLISH', channel, 'o' .. struct.pack('<dd', now, ends_in) .. text)
end

-- Those that last. Forgets the others.
local function list()
  local found = {}
  local all = redis.call('HGETALL', KEYS[1])
  for place = 1, #all, 2 do
    local lasts = left(all[place + 1])
    if lasts > 0 then
      found[#found + 1] = string.format('%.3f', lasts)
      found[#found + 1] = string.sub(all[place + 1], 9)
    else
      redis.call('HDEL', KEYS[1], all[place])
    end
  end
  return found
end

if verb == 'list' then return list() end

local known = redis.call('HGET', KEYS[1], name)
if verb == 'end' then
  redis.call('HDEL', KEYS[1], name)
  if left(known) == 0 then return 0 end
  tell(0, ARGV[4])
  return 1
end

local ends_in, text, most = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
if not known and redis.call('HLEN', KEYS[1]) >= most and #list() / 2 >= most then return 0 end
redis.call('HSET', KEYS[1], name, struct.pack('<d', now + ends_in) .. text)
local life = math.max(redis.call('PTTL', KEYS[1]), ends_in + @KEEP_MARGIN@)
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
tell(ends_in, text)
return 1
