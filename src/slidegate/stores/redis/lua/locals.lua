-- Functions shared by the other parts.

local floor, max, min = math.floor, math.max, math.min
local sub, match = string.sub, string.match
local pack, unpack_from = struct.pack, struct.unpack

local function text_of(moment)
  return string.format("%.0f", moment)
end

-- The server's time in microseconds, or that of a test clock.
local function time_of(given)
  local now = tonumber(given)
  if now < 0 then
    local clock = redis.call("TIME")
    now = clock[1] * 1000000 + clock[2]
  end
  return now
end

-- Run a command on data that all keys share; nil if another program's value is stored there, which must fail no other key.
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) ~= "table" or not answer.err then
    return answer
  elseif not match(answer.err, "WRONGTYPE") then
    error(answer.err, 0)
  end
end

-- Make a key live for at least left_ms; extend it by longer_ms more than that, so that not every call has to extend it.
local function live_for(name, left_ms, longer_ms)
  if redis.call("PTTL", name) < left_ms then
    redis.call("PEXPIRE", name, math.ceil(left_ms) + longer_ms)
  end
end
