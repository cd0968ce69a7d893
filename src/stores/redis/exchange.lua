-- What instances tell each other of an upstream's limits, by the semantics of src/core/store.ts; decide.lua goes on.
--
-- It is kept as four doubles: at (ms of redis.lua's clock) and, as they were then, for how much longer it is paused (ms),
-- its rate (cost units per ms) and for how much longer that holds (ms). Durations and not moments: a clock that goes back
-- is as if no time had passed. So that little of it has, `at` moves with each exchange.

-- paused_for, rate and rate_for are what is new; rate 0: nothing of that. Answers what holds, in the same terms.
local function exchange(key, now, paused_for, rate, rate_for)
  -- Unlike GET it takes what is not a string for nothing.
  local state = redis.call('MGET', key)[1]
  local known = state and #state == 32
  if known then
    local at, paused, allowed, holds = struct.unpack('<dddd', state)
    local elapsed = math.max(0, now - at)
    paused_for = math.max(paused_for, paused - elapsed)
    if rate == 0 then rate, rate_for = allowed, math.max(0, holds - elapsed) end
  end
  local lasts = math.max(paused_for, rate_for)
  if lasts > 0 then
    -- A second more than needed: keys expire by a coarser clock.
    redis.call('SET', key, struct.pack('<dddd', now, paused_for, rate, rate_for), 'PX', math.ceil(lasts) + 1000)
  elseif known then
    -- What is over must not come back with a clock that goes back.
    redis.call('DEL', key)
  end
  return paused_for, rate, rate_for
end
