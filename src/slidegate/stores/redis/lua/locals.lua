-- What the other parts share.

local floor, max, min = math.floor, math.max, math.min
local sub, match = string.sub, string.match
local pack, unpack_from = struct.pack, struct.unpack

local function text_of(moment)
  return string.format("%.0f", moment)
end

-- The server's time, or that of a test.
local function time_of(given)
  local now = tonumber(given)
  if now < 0 then
    local clock = redis.call("TIME")
    now = clock[1] * 1000000 + clock[2]
  end
  return now
end

-- Call a command about what all keys share; nil where a value of somebody else stands there, which concerns no other key.
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) ~= "table" or not answer.err then
    return answer
  elseif not match(answer.err, "WRONGTYPE") then
    error(answer.err, 0)
  end
end

-- Let a key live for so long at least; where it does not, some time longer, so that its end need not be moved each time.
local function live_for(name, left_ms, longer_ms)
  if redis.call("PTTL", name) < left_ms then
    redis.call("PEXPIRE", name, math.ceil(left_ms) + longer_ms)
  end
end
