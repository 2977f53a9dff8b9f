-- Bans at rest: in the hash `list`, a ban for each key. Its field "" says of which kinds they are, and how many of each:
-- "4/24=2 key=1" are two networks with prefixes of 24 bits, and a ban of nothing but its key. Who knows the kinds works
-- out under which keys the bans of a client would stand: its own, and that of a network for each length in use.

local KINDS = ""
local LIFE_BYTES = 16

-- Which life of the data this is, and the number of the last change that workers have to forget answers for; "" where
-- the data has no life yet, or was lost.
local function state_of(life, number)
  return life and life ~= "" and life .. (number or 0) or ""
end

local function kinds_of(list)
  return redis.call("HGET", list, KINDS) or ""
end

local function unpack_ban(key, row)
  local ban, from = { key = key }, nil
  ban.made, ban.ends, ban.wall, ban.level, ban.by, from = unpack_from("<i8i8i8I4Hc0", row)
  ban.reason = sub(row, from)
  return ban
end

local function is_over(ban, now)
  return ban.ends >= 0 and now >= ban.ends
end

-- The bans' time, and how far it is ahead of the server's. It never runs back, see core/bans/strikes.py: where the
-- server's does, the lead grows by as much, for all workers.
local function time_of_bans(meta, wall, ahead, latest)
  if wall + ahead < latest then
    ahead = latest - wall
    redis.call("HSET", meta, "ahead", string.format("%.0f", ahead))
  end
  return wall + ahead, ahead
end

-- Look for the bans of a request, whose keys stand at a place of `packed`: first its own, then the networks around its
-- addresses, for which only bans made by hand count. Answers with the time, key and row of each that is in force; with how
-- many there are; and with the place of the next request.
local function find_bans(list, packed, at, now)
  local keys, told, own, many, found = {}, pack("<i8", now), nil, nil, 0
  own, many, at = unpack_from("<HH", packed, at)
  for place = 1, many do
    keys[place], at = unpack_from("<Hc0", packed, at)
  end
  for place, row in ipairs(many > 0 and redis.call("HMGET", list, unpack(keys)) or {}) do
    local ban = row and unpack_ban(keys[place], row)
    if ban and not is_over(ban, now) and (place <= own or ban.level == 0) then
      told, found = told .. pack("<HHc0", #row, #ban.key, ban.key) .. row, found + 1
    end
  end
  return told, found, at
end
