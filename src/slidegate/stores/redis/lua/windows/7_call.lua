-- One call: ARGV[1] is the head, ARGV[2] the number of the last change of bans that the caller knows, ARGV[3] the guards
-- of each request, and ARGV[4] the requests; they are decided in order. The answer is {time, number of bans, life and
-- number of hand-backs, answers ...}.
--
-- There are no answers where bans have changed and ARGV[3] is empty: the caller asks again, and sends the guards of the
-- requests. Then they are judged here, by the bans that stand here, whatever changes meanwhile.

local FAILED, BANNED = 255, 5
local STATE_PARTS = 3
local now, slack_ms, with_meta
now, serials, slack_ms, with_meta = unpack_from("<i8I4I4B", ARGV[1])
if now < 0 then
  local clock = redis.call("TIME")
  now = clock[1] * 1000000 + clock[2]
end
local replies = { pack("<i8", now), "", "" }
local judged
if with_meta == 1 then
  local seen = redis.call("HMGET", KEYS[1], "bans", "life", "hands", "ahead", "latest")
  replies[2], replies[3] = seen[1] or "", state_of(seen[2], seen[3])
  if ARGV[3] == "" and replies[2] ~= ARGV[2] then
    return replies
  end
  if ARGV[3] ~= "" then
    local banned, at = make_banned(KEYS[2]), 1
    local bans_now = banned.time(KEYS[1], now, tonumber(seen[4]) or 0, tonumber(seen[5]) or 0)
    judged = function()
      local found
      found, at = banned.of_request(ARGV[3], at, bans_now, now)
      return #found > 0 and pack("<B", BANNED) .. banned.told(found, bans_now)
    end
  end
end

local requests = ARGV[4]

local function answer_to(what, many, at)
  return judged and judged() or handle(what, many, requests, at, now)
end

local handed_back = false
local next_at, place = 1, STATE_PARTS
while next_at <= #requests do
  local what, many, at = unpack_from("<BH", requests, next_at)
  next_at, place = at + bytes_of(what, many), place + 1
  local fine, reply = pcall(answer_to, what, many, at)
  if not fine then
    reply = pack("<B", FAILED) .. (type(reply) == "table" and reply.err or tostring(reply))
  end
  replies[place] = reply
  handed_back = handed_back or byte(reply) == CHANGED
end
if handed_back and with_meta == 1 then
  replies[3] = state_of(sub(replies[3], 1, LIFE_BYTES), redis.call("HINCRBY", KEYS[1], "hands", 1))
end
local saved, why = pcall(save, now, slack_ms)
if not saved then
  for place = STATE_PARTS + 1, #replies do
    local status = unpack_from("<B", replies[place])
    local refused = status == LIMITED or status == UNSETTLED or status == TOO_LARGE or status == BANNED
    if not refused and status ~= NOTHING then
      replies[place] = pack("<B", FAILED) .. (type(why) == "table" and why.err or tostring(why))
    end
  end
end
return replies
