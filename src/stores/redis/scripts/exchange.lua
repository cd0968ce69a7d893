-- What instances tell each other of an upstream's limits. src/core/store.ts says what it means. decide.lua follows.
--
-- It is kept as four doubles: at (ms of decide.lua's clock) and, at that time, how much longer it is paused (ms), its rate
-- (cost units per ms) and how much longer that holds (ms). Durations, not moments: if the clock goes back, no time has
-- passed. `at` moves with each exchange, so that little time is lost.

local SAME_PAUSE = @SAME_PAUSE@

-- paused_for, rate and rate_for are the news; rate 0: none. Answers what holds, in the same terms. What is new for the others
-- is published on `channel`, as `u`, the time and these terms as doubles, and the key.
local function exchange(key, now, paused_for, rate, rate_for, channel)
  -- Unlike GET it answers nothing for a key that is not a string.
  local state = redis.call('MGET', key)[1]
  local known = state and #state == 32
  local is_new = paused_for > 0 or rate > 0
  if known then
    local at, paused, allowed, holds = struct.unpack('<dddd', state)
    local elapsed = math.max(0, now - at)
    local left = holds - elapsed
    is_new = paused_for > math.max(0, paused - elapsed) + SAME_PAUSE or rate > 0 and (rate ~= allowed or rate_for > left)
    paused_for = math.max(paused_for, paused - elapsed)
    if rate == 0 then rate, rate_for = allowed, math.max(0, left) end
  end
  local lasts = math.max(paused_for, rate_for)
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
