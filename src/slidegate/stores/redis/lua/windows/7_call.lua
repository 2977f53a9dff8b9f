-- One call: ARGV[1] is the head, ARGV[2] the number of the last change of bans that the caller knows, and each further
-- ARGV a request; they are decided in order. The answer is {time, number of bans, number of hand-backs, answers ...}.
-- Where the caller does not know the latest bans there are no answers: it asks for them, and comes again.

local FAILED = 255
local now, slack_ms, with_meta
now, serials, slack_ms, with_meta = unpack_from("<i8I4I4B", ARGV[1])
if now < 0 then
  local clock = redis.call("TIME")
  now = clock[1] * 1000000 + clock[2]
end
local replies = { pack("<i8", now), "", "" }
if with_meta == 1 then
  local seen = redis.call("HMGET", KEYS[1], "bans", "hands")
  replies[2], replies[3] = seen[1] or "", seen[2] or ""
  if replies[2] ~= ARGV[2] then
    return replies
  end
end
local handed_back = false
for place = 3, #ARGV do
  local fine, reply = pcall(handle, ARGV[place], now)
  replies[place + 1] = fine and reply or pack("<B", FAILED) .. tostring(reply)
  handed_back = handed_back or (fine and unpack_from("<B", reply) == CHANGED)
end
if handed_back and with_meta == 1 then
  replies[3] = tostring(redis.call("HINCRBY", KEYS[1], "hands", 1))
end
local saved, why = pcall(save, now, slack_ms)
if not saved then
  for place = 4, #replies do
    local status = unpack_from("<B", replies[place])
    if status ~= LIMITED and status ~= TOO_LARGE and status ~= NOTHING then
      replies[place] = pack("<B", FAILED) .. (type(why) == "table" and why.err or tostring(why))
    end
  end
end
return replies
