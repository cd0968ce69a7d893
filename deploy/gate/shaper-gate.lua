-- The action `lua.shaper`: a request waits here until shaper lets it pass, or gets shaper's rejection as its answer.

local ADDRESS = "127.0.0.1:8080"
-- Seconds. Longer than the longest wait.
local TIMEOUT = 60
-- Whether requests pass while shaper does not answer.
local FAIL_OPEN = false

-- These are of the connection or of the body, or a client could contradict what this proxy tells shaper.
local LEFT_OUT = {
  "host", "connection", "keep-alive", "upgrade", "te", "expect", "content-length", "transfer-encoding", "trailer",
  "x-original-method", "x-original-uri", "x-forwarded-method", "x-forwarded-uri", "x-forwarded-host", "x-forwarded-for",
}
-- What a client is told of a rejection.
local PASSED_ON = { "content-type", "retry-after", "ratelimit", "ratelimit-policy" }

local function question(txn)
  local headers = txn.http:req_get_headers()
  local host = headers["host"] and headers["host"][0] or ADDRESS
  for _, name in ipairs(LEFT_OUT) do headers[name] = nil end
  local lines = {
    "GET / HTTP/1.1", "host: " .. host, "connection: close",
    "x-forwarded-method: " .. txn.f:method(), "x-forwarded-uri: " .. txn.f:pathq(),
    "x-forwarded-host: " .. host, "x-forwarded-for: " .. txn.f:src(),
  }
  for name, values in pairs(headers) do
    for _, value in pairs(values) do lines[#lines + 1] = name .. ": " .. value end
  end
  return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

-- The status, headers and body of shaper's answer. Nil: there is none.
-- A socket, and no core.httpclient(): only a socket is closed as soon as the client hangs up, which gives its slot back.
local function ask(txn)
  local socket = core.tcp()
  socket:settimeout(TIMEOUT)
  if not socket:connect(ADDRESS) or not socket:send(question(txn)) then return nil end
  local status = tonumber((socket:receive("*l") or ""):match("^HTTP/1%.1 (%d+)"))
  local headers = {}
  local line = status and socket:receive("*l")
  while line and line:match("%S") do
    local name, value = line:match("^([^:]+):%s*(.-)%s*$")
    if name then headers[name:lower()] = value end
    line = socket:receive("*l")
  end
  local body = status ~= 204 and socket:receive("*a") or ""
  socket:close()
  return status, headers, body
end

core.register_action("shaper", { "http-req" }, function(txn)
  local status, headers, body = ask(txn)
  if status == 204 or (status == nil and FAIL_OPEN) then
    txn:set_var("txn.shaper_passed", true)
    return
  end
  local reply = txn:reply{ status = status or 503, body = body }
  for _, name in ipairs(PASSED_ON) do
    if headers and headers[name] then reply:add_header(name, headers[name]) end
  end
  txn:done(reply)
end, 0)
