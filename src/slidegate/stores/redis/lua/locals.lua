-- What the other parts share. ARGV[1] is the time of a test clock, or -1 for that of the server.

local FIELD_BYTES = 8 -- of the name of a window in a hash
local NAME_BYTES = 5 -- of these, at the start: the digest of the bucket's name
local ENDS_BYTES = 8 -- of the end with which the value of a window starts, and each row of bans, strikes, levels and workers
local max, min = math.max, math.min
local sub = string.sub
local pack, unpack_from = struct.pack, struct.unpack

local now, slack_ms = tonumber(ARGV[1]), 86400000
if now < 0 then
  local clock = redis.call("TIME")
  now, slack_ms = clock[1] * 1000000 + clock[2], 1000
end

local keys_before = 0 -- those of the requests that have been answered
local keys_here = 0 -- those of this request

-- Return a key of a request; the first one is at 1.
local function key_at(place)
  return KEYS[keys_before + place]
end

-- Store a value in a field of a hash; return 1 if the field is new.
local function store(name, field, value)
  return redis.call("HSET", name, field, value)
end

-- Make a key live for at least left_ms; extend it by more than that, so that not every call has to. Return how long it would
-- have lived, -1 if it is new.
local function live_for(name, left_ms)
  local lives_ms = redis.call("PTTL", name)
  if lives_ms < left_ms then
    redis.call("PEXPIRE", name, math.ceil(left_ms) + slack_ms)
  end
  return lives_ms
end
