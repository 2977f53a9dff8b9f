-- Functions shared by the other parts.

local max, min = math.max, math.min
local sub = string.sub
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

-- Make a key live for at least left_ms; extend it by longer_ms more than that, so that not every call has to extend it.
local function live_for(name, left_ms, longer_ms)
  if redis.call("PTTL", name) < left_ms then
    redis.call("PEXPIRE", name, math.ceil(left_ms) + longer_ms)
  end
end
